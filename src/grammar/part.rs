//! Defines the tree of parts that describes an output, for structural tags and tool calls.

use serde_json::Value;

use souffleur_state::grammar::JsonWhitespace;

#[derive(Clone, Debug)]
pub(super) enum Part {
    Text(String),
    /// A JSON value that matches a checked schema.
    Json {
        schema: Value,
        whitespace: JsonWhitespace,
    },
    /// A terminal, given as its right side in Lark.
    Terminal(String),
    Grammar(String),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    /// No `max` means no upper bound.
    Repeat {
        part: Box<Part>,
        min: u32,
        max: Option<u32>,
    },
    /// The required fields and any of the optional fields, in order.
    Fields {
        fields: Vec<(Part, Presence)>,
        separator: String,
    },
    /// `begin`, the content, and one of `ends`. Free text in the content stops at the first end.
    Tag {
        begin: String,
        content: Box<Part>,
        ends: Vec<String>,
    },
    /// Any text, up to the end of the enclosing part.
    Free(Free),
    Triggered(Triggered),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    Optional,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Free {
    /// Texts that the free text must not contain.
    pub(super) excludes: Vec<String>,
    /// Lark terminals that must match the whole free text.
    pub(super) matches: Vec<String>,
    /// A regular expression that must not match at the start of the free text.
    pub(super) not_at_first: Option<String>,
    /// Whether markers are excluded.
    pub(super) is_plain: bool,
}

/// Free text in which each trigger begins a tag.
#[derive(Clone, Debug)]
pub(super) struct Triggered {
    pub(super) free: Free,
    /// The triggers, each with the part that follows it.
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

    /// One or more repetitions of a part, with separators between them.
    pub(super) fn separated(part: Self, separator: Self) -> Self {
        let again = Self::Sequence(vec![separator, part.clone()]);
        Self::Sequence(vec![part, Self::any_number(again)])
    }

    pub(super) fn any_number(part: Self) -> Self {
        Self::Repeat {
            part: Box::new(part),
            min: 0,
            max: None,
        }
    }

    /// Whether only the text after the part determines where the part ends.
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
