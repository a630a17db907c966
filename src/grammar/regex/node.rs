//! Defines the syntax tree of the regular expressions of requests.

use regex_syntax::hir::ClassUnicode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// One character of a set, which may be empty.
    Class(ClassUnicode),
    /// The text begins here.
    Start,
    /// The text ends here.
    End,
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// No `max` means no upper bound.
    Repeat {
        node: Box<Node>,
        min: u32,
        max: Option<u32>,
    },
}

impl Node {
    pub(super) fn empty() -> Self {
        Self::Sequence(Vec::new())
    }

    /// Builds a sequence, with nested sequences flattened.
    pub(super) fn sequence(parts: Vec<Self>) -> Self {
        let mut flat = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Self::Sequence(inner) => flat.extend(inner),
                part => flat.push(part),
            }
        }
        // An anchor after the same anchor is redundant.
        let is_anchor = |part: &Self| matches!(part, Self::Start | Self::End);
        flat.dedup_by(|next, last| is_anchor(last) && next == last);
        match flat.len() {
            1 => flat.remove(0),
            _ => Self::Sequence(flat),
        }
    }
}
