//! What a request asks for, and the sources that say it.

use std::sync::Arc;

use serde_json::json;

use super::limits::GrammarLimits;
use super::regex;
use super::schema;
use super::source::{Source, quoted};
use crate::error::{FieldError, RequestError};
use crate::model::text::TextModel;
use crate::state::grammar::{Constraint, JsonWhitespace};
use crate::state::output::{ToolFormat, ToolUse};

/// What the output of a request must be.
#[derive(Clone, Debug, Default)]
pub struct GrammarWish {
    /// The text of an answer that calls no tool.
    pub constraint: Option<Arc<Constraint>>,
    /// The tools that may or must be called.
    pub tools: Option<Arc<ToolUse>>,
    /// How the model writes calls. Without it tools constrain nothing.
    pub tool_format: Option<ToolFormat>,
    /// Reasoning before the answer, which nothing constrains.
    pub reasoning: Option<ReasoningGate>,
}

/// The tags around a model's reasoning. The grammar begins after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningGate {
    /// Opens it, such as `<think>`.
    pub open: Arc<str>,
    /// Closes it, such as `</think>`.
    pub close: Arc<str>,
    /// The prompt has opened it already.
    pub starts_inside: bool,
}

/// The sources that say what is wished, the best first; the next is for when llguidance cannot compile one. None if
/// nothing is constrained.
pub(super) fn sources(
    wish: &GrammarWish,
    _text: &TextModel,
    limits: &GrammarLimits,
) -> Result<Vec<Source>, RequestError> {
    let constraint = wish.constraint.as_deref();
    let source = constraint.map(|constraint| of_constraint(constraint, limits));
    Ok(source.transpose()?.into_iter().collect())
}

fn of_constraint(constraint: &Constraint, limits: &GrammarLimits) -> Result<Source, FieldError> {
    match constraint {
        Constraint::JsonObject(whitespace) => {
            check_whitespace(whitespace, limits)?;
            let schema = json!({"type": "object"});
            Ok(Source::of_schema("json_object", schema, whitespace))
        }
        Constraint::JsonSchema {
            schema,
            whitespace,
            is_strict,
        } => {
            check_whitespace(whitespace, limits)?;
            let objects = match is_strict {
                true => schema::Objects::Closed,
                false => schema::Objects::AsWritten,
            };
            let schema = schema::checked("json_schema", schema, objects, limits)?;
            Ok(Source::of_schema("json_schema", schema, whitespace))
        }
        Constraint::Regex(pattern) => {
            let body = regex::whole_match("regex", pattern, limits)?;
            Ok(Source::of_lark(
                "regex",
                format!("start: WHOLE\nWHOLE: {body}\n"),
            ))
        }
        Constraint::Choice(texts) => choice(texts, limits),
        Constraint::Ebnf(_) => Err(FieldError::not_yet("ebnf")),
        Constraint::StructuralTag(_) => Err(FieldError::not_yet("structural_tag")),
    }
}

fn choice(texts: &[String], limits: &GrammarLimits) -> Result<Source, FieldError> {
    if texts.is_empty() {
        let reason = "choice is empty: name one text at least";
        return Err(FieldError::new("choice", reason));
    }
    check_bytes("choice", texts.iter().map(String::len).sum(), limits)?;
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    let lark = format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | "));
    Ok(Source::of_lark("choice", lark))
}

fn check_whitespace(whitespace: &JsonWhitespace, limits: &GrammarLimits) -> Result<(), FieldError> {
    match whitespace {
        JsonWhitespace::Pattern(pattern) => regex::check("whitespace_pattern", pattern, limits),
        JsonWhitespace::Bounded | JsonWhitespace::Compact => Ok(()),
    }
}

/// Tells whether a text has more bytes than it may.
pub(super) fn check_bytes(
    field: &str,
    bytes: usize,
    limits: &GrammarLimits,
) -> Result<(), FieldError> {
    let limit = limits.text_bytes;
    if bytes <= limit {
        return Ok(());
    }
    let reason = format!("{field} has {bytes} bytes, limit is {limit}: send a shorter one");
    Err(FieldError::new(field, reason))
}
