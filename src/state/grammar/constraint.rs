//! Output constraints of requests: JSON, regular expression, EBNF, choice, structural tag.

use std::sync::Arc;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    JsonObject(JsonWhitespace),
    JsonSchema {
        schema: Arc<Value>,
        whitespace: JsonWhitespace,
        /// Allows only the properties that the schema names, as OpenAI's strict mode does.
        is_strict: bool,
    },
    /// A text that the regular expression matches entirely.
    Regex(Arc<str>),
    /// A text that the grammar derives: EBNF with the start rule `root`, or Lark after a first line `%llguidance {}`.
    Ebnf(Arc<str>),
    Choice(Arc<[String]>),
    /// Free text in which certain opening tags start structured text with an end tag: SGLang's `structural_tag`, in its
    /// old form (`structures`, `triggers`) or its new one (`format`).
    StructuralTag(Arc<Value>),
}

/// White space in constrained JSON. Without a limit small models emit white space forever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JsonWhitespace {
    /// One space, or a line break and at most 40 characters of indentation, as models usually write JSON.
    #[default]
    Bounded,
    Compact,
    Pattern(Arc<str>),
}
