//! Writes EBNF rules in Lark.
//!
//! llguidance's lexer takes the longest match and does not backtrack, so a grammar of single characters is slow, and
//! one of overlapping words rejects valid texts. So every small rule that neither is recursive nor uses a recursive
//! rule becomes a terminal, which is matched as one regular expression. In all other rules, adjacent parts without
//! recursion become one terminal. A tail-recursive rule becomes a repetition.

use std::fmt::Write;

use super::expression::{Expression, RuleId};
use crate::source::quoted;

/// Writes a grammar of these rules; the first one is the start rule.
pub(super) fn write(rules: &[Expression]) -> Result<String, String> {
    let rules: Vec<Expression> = rules
        .iter()
        .enumerate()
        .map(|(id, body)| without_tail_recursion(id, body))
        .collect();
    let mut writer = Writer {
        is_terminal: terminals(&rules),
        lark: String::new(),
        n_hoisted: 0,
    };
    let start = writer.rule_name(0);
    writer.line("start", &start);
    for (id, body) in rules.iter().enumerate() {
        let name = writer.rule_name(id);
        let body = if writer.is_terminal[id] {
            writer.terminal(body)
        } else {
            writer.rule(body)
        };
        writer.line(&name, &body);
    }
    Ok(writer.lark)
}

/// Maximum number of parts of a terminal, including the parts of the terminals that it refers to.
const MAX_PARTS: u64 = 20_000;

/// For each rule, whether it and all rules that it uses are small and not recursive.
fn terminals(rules: &[Expression]) -> Vec<bool> {
    let mut named_by: Vec<Vec<RuleId>> = vec![Vec::new(); rules.len()];
    let mut undecided: Vec<usize> = Vec::with_capacity(rules.len());
    for (id, body) in rules.iter().enumerate() {
        let mut named = Vec::new();
        body.rules(&mut named);
        undecided.push(named.len());
        named.into_iter().for_each(|rule| named_by[rule].push(id));
    }
    let mut is_terminal = vec![false; rules.len()];
    let mut sizes = vec![0; rules.len()];
    let mut ready: Vec<RuleId> = (0..rules.len()).filter(|&id| undecided[id] == 0).collect();
    while let Some(id) = ready.pop() {
        sizes[id] = rules[id].size(&sizes);
        if sizes[id] > MAX_PARTS {
            continue;
        }
        is_terminal[id] = true;
        for &user in &named_by[id] {
            undecided[user] -= 1;
            if undecided[user] == 0 {
                ready.push(user);
            }
        }
    }
    is_terminal
}

/// Rewrites `a ::= x a | y` as `x* y`, and `a ::= (x a)?` as `x*`.
fn without_tail_recursion(id: RuleId, body: &Expression) -> Expression {
    let options = match body {
        Expression::Choice(options) => options.clone(),
        Expression::Repeat {
            expression,
            min: 0,
            max: Some(1),
        } => vec![(**expression).clone(), Expression::empty()],
        _ => return body.clone(),
    };
    let (mut repeated, mut last) = (Vec::new(), Vec::new());
    for option in options {
        match option {
            Expression::Sequence(mut parts) if parts.last() == Some(&Expression::Rule(id)) => {
                parts.pop();
                repeated.push(Expression::Sequence(parts));
            }
            option => last.push(option),
        }
    }
    let is_recursive = repeated.iter().chain(&last).any(|part| part.refers_to(id));
    if is_recursive || repeated.is_empty() || last.is_empty() {
        return body.clone();
    }
    let repeated = Expression::Repeat {
        expression: Box::new(Expression::Choice(repeated)),
        min: 0,
        max: None,
    };
    Expression::Sequence(vec![repeated, Expression::Choice(last)])
}

struct Writer {
    is_terminal: Vec<bool>,
    lark: String,
    n_hoisted: usize,
}

impl Writer {
    fn rule_name(&self, id: RuleId) -> String {
        if self.is_terminal[id] {
            format!("T{id}")
        } else {
            format!("r{id}")
        }
    }

    fn line(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.lark, "{name}: {body}");
    }

    fn all_terminals(&self, expression: &Expression) -> bool {
        let mut named = Vec::new();
        expression.rules(&mut named);
        named.into_iter().all(|rule| self.is_terminal[rule])
    }

    /// Writes the right side of a terminal. Compound parts become separate named terminals, so that nothing is nested.
    fn terminal(&mut self, expression: &Expression) -> String {
        match expression {
            Expression::Text(text) => quoted(text),
            Expression::Class(class) => format!("/{class}/"),
            Expression::Rule(rule) => self.rule_name(*rule),
            Expression::Sequence(parts) => self.joined(parts, " ", Self::terminal_atom),
            Expression::Choice(options) => self.joined(options, " | ", Self::terminal_atom),
            Expression::Repeat {
                expression,
                min,
                max,
            } => repeated(&self.terminal_atom(expression), *min, *max),
        }
    }

    fn terminal_atom(&mut self, expression: &Expression) -> String {
        match expression {
            Expression::Text(_) | Expression::Class(_) | Expression::Rule(_) => {
                self.terminal(expression)
            }
            _ => {
                let body = self.terminal(expression);
                self.hoist("H", &body)
            }
        }
    }

    fn rule(&mut self, expression: &Expression) -> String {
        if self.all_terminals(expression) {
            return self.terminal_atom(expression);
        }
        match expression {
            Expression::Sequence(parts) => {
                let parts = self.merged(parts);
                self.joined(&parts, " ", Self::rule_atom)
            }
            Expression::Choice(options) => self.joined(options, " | ", Self::rule_atom),
            Expression::Repeat {
                expression,
                min,
                max,
            } => repeated(&self.rule_atom(expression), *min, *max),
            _ => self.terminal(expression),
        }
    }

    fn rule_atom(&mut self, expression: &Expression) -> String {
        if self.all_terminals(expression) {
            return self.terminal_atom(expression);
        }
        match expression {
            Expression::Rule(rule) => self.rule_name(*rule),
            _ => {
                let body = self.rule(expression);
                self.hoist("h", &body)
            }
        }
    }

    /// Merges adjacent parts without recursion, which become one terminal.
    fn merged(&self, parts: &[Expression]) -> Vec<Expression> {
        let runs =
            parts.chunk_by(|left, right| self.all_terminals(left) && self.all_terminals(right));
        runs.map(|run| match run {
            [part] => part.clone(),
            _ => Expression::Sequence(run.to_vec()),
        })
        .collect()
    }

    fn joined(
        &mut self,
        parts: &[Expression],
        separator: &str,
        atom: fn(&mut Self, &Expression) -> String,
    ) -> String {
        let atoms: Vec<String> = parts.iter().map(|part| atom(self, part)).collect();
        if atoms.is_empty() {
            "\"\"".to_owned()
        } else {
            atoms.join(separator)
        }
    }

    fn hoist(&mut self, prefix: &str, body: &str) -> String {
        let name = format!("{prefix}{}", self.n_hoisted);
        self.n_hoisted += 1;
        self.line(&name, body);
        name
    }
}

fn repeated(atom: &str, min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => format!("{atom}*"),
        (1, None) => format!("{atom}+"),
        (0, Some(1)) => format!("{atom}?"),
        (min, None) => format!("{atom}{{{min},}}"),
        (min, Some(max)) => format!("{atom}{{{min},{max}}}"),
    }
}
