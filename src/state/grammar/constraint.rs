//! Constraints on an output, as requests state them.

use std::sync::Arc;

use serde_json::Value;

/// The text that an output must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject(JsonWhitespace),
    /// A JSON value that the schema accepts.
    JsonSchema {
        /// The schema.
        schema: Arc<Value>,
        /// The white space between its values.
        whitespace: JsonWhitespace,
        /// Objects have no properties but those that the schema names, as in OpenAI's strict mode.
        is_strict: bool,
    },
    /// A text that the regular expression matches from its first to its last character.
    Regex(Arc<str>),
    /// A text that the grammar derives: EBNF with the start rule `root`, or Lark after a first line `%llguidance {}`.
    Ebnf(Arc<str>),
    /// One of these texts.
    Choice(Arc<[String]>),
    /// Free text in which tags of a kind, once they have begun, are followed by structured text and an end: SGLang's
    /// `structural_tag`, in its old form (`structures`, `triggers`) or its new one (`format`).
    StructuralTag(Arc<Value>),
}

/// The white space between the values of constrained JSON. Without a limit small models write blanks for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JsonWhitespace {
    /// As models write it of their own accord: one blank, or a line break and at most 40 characters of indentation.
    #[default]
    Bounded,
    /// None at all.
    Compact,
    /// Any that the regular expression matches.
    Pattern(Arc<str>),
}
