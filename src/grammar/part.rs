//! Outputs as trees of parts, for structural tags and tool calls.

use serde_json::Value;

use souffleur_state::grammar::JsonWhitespace;

#[derive(Clone, Debug)]
pub(super) enum Part {
    Text(String),
    /// A value of a schema, which has been checked.
    Json {
        schema: Value,
        whitespace: JsonWhitespace,
    },
    /// A terminal, given as its right side in Lark.
    Terminal(String),
    Grammar(String),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    /// No `most` means no upper bound.
    Repeat {
        part: Box<Part>,
        least: u32,
        most: Option<u32>,
    },
    /// Some of the fields, in their order.
    Fields {
        fields: Vec<(Part, Presence)>,
        separator: String,
    },
    /// A text, the content, and one of the ends. Free text inside ends where the first end begins.
    Tag {
        begin: String,
        content: Box<Part>,
        ends: Vec<String>,
    },
    /// Any text, up to the end of the part around it.
    Free(Free),
    Triggered(Triggered),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    Optional,
}

/// Free text, with its only constraints.
#[derive(Clone, Debug, Default)]
pub(super) struct Free {
    /// Texts that it must not contain.
    pub(super) excludes: Vec<String>,
    /// Terminals in Lark, each of which matches all of it.
    pub(super) matches: Vec<String>,
    /// A regular expression that its beginning must not match.
    pub(super) not_at_first: Option<String>,
    /// Whether it contains no markers.
    pub(super) is_plain: bool,
}

/// Free text in which some texts are the beginnings of tags.
#[derive(Clone, Debug)]
pub(super) struct Triggered {
    pub(super) free: Free,
    /// The beginnings of tags, and the part after each.
    pub(super) triggers: Vec<(String, Part)>,
    /// Whether the first tag is required, without text before it.
    pub(super) at_least_one: bool,
    /// Whether nothing follows the first tag.
    pub(super) stops_after_first: bool,
}

impl Part {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn json(schema: Value) -> Self {
        let whitespace = JsonWhitespace::Bounded;
        Self::Json { schema, whitespace }
    }

    /// One or more times, with separators between.
    pub(super) fn separated(part: Self, separator: Self) -> Self {
        let again = Self::Sequence(vec![separator, part.clone()]);
        Self::Sequence(vec![part, Self::any_number(again)])
    }

    pub(super) fn any_number(part: Self) -> Self {
        Self::Repeat {
            part: Box::new(part),
            least: 0,
            most: None,
        }
    }

    /// Whether the part may continue until the text after it.
    pub(super) fn is_unlimited(&self) -> bool {
        match self {
            Self::Free(_) => true,
            Self::Triggered(triggered) => !(triggered.at_least_one && triggered.stops_after_first),
            Self::Sequence(parts) => parts.last().is_some_and(Self::is_unlimited),
            Self::Choice(parts) => parts.iter().any(Self::is_unlimited),
            _ => false,
        }
    }
}
