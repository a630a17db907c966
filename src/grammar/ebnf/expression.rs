//! Defines the syntax tree of EBNF rules.

/// The index of a rule in the grammar.
pub(super) type RuleId = usize;

/// The right side of a rule, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    Text(String),
    /// One character of a class, as a regular expression.
    Class(String),
    Rule(RuleId),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    /// No `max` means no upper bound.
    Repeat {
        expression: Box<Expression>,
        min: u32,
        max: Option<u32>,
    },
}

impl Expression {
    pub(super) fn empty() -> Self {
        Self::Sequence(Vec::new())
    }

    pub(super) fn rules(&self, found: &mut Vec<RuleId>) {
        match self {
            Self::Text(_) | Self::Class(_) => {}
            Self::Rule(rule) => found.push(*rule),
            Self::Sequence(parts) | Self::Choice(parts) => {
                parts.iter().for_each(|part| part.rules(found));
            }
            Self::Repeat { expression, .. } => expression.rules(found),
        }
    }

    /// The number of parts, including the parts of the rules that the expression refers to.
    pub(super) fn size(&self, of_rules: &[u64]) -> u64 {
        let parts = match self {
            Self::Text(_) | Self::Class(_) => 0,
            Self::Rule(rule) => of_rules[*rule],
            Self::Sequence(parts) | Self::Choice(parts) => parts
                .iter()
                .fold(0, |sum: u64, part| sum.saturating_add(part.size(of_rules))),
            Self::Repeat { expression, .. } => expression.size(of_rules),
        };
        parts.saturating_add(1)
    }

    pub(super) fn refers_to(&self, rule: RuleId) -> bool {
        let mut found = Vec::new();
        self.rules(&mut found);
        found.contains(&rule)
    }
}
