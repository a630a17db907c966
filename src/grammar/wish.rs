//! Defines the output form that a request requires, and builds the grammar sources for it.

use std::sync::Arc;

use serde_json::json;

use super::ebnf;
use super::frame::AnswerFrame;
use super::limits::{GrammarLimits, check_bytes};
use super::markers::Markers;
use super::part::Part;
use super::regex;
use super::schema;
use super::source::{Source, quoted};
use super::structural_tag;
use super::tools::{Arguments, Calls, messages};
use super::writer;
use souffleur_base::error::FieldError;
use souffleur_state::grammar::{Constraint, JsonWhitespace};
use souffleur_state::output::{ToolChoice, ToolFormat, ToolUse};

#[derive(Clone, Debug, Default)]
pub struct GrammarWish {
    /// The constraint on an answer without tool calls.
    pub constraint: Option<Arc<Constraint>>,
    pub tools: Option<Arc<ToolUse>>,
    /// The model's format of tool calls. `None` disables constraints of tools.
    pub tool_format: Option<ToolFormat>,
    /// The tags of unconstrained reasoning before the answer.
    pub reasoning: Option<ReasoningGate>,
    pub frame: AnswerFrame,
}

/// The tags around a model's reasoning. The grammar begins after the reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningGate {
    /// The opening tag, such as `<think>`.
    pub open: Arc<str>,
    /// The closing tag, such as `</think>`.
    pub close: Arc<str>,
    /// Whether the prompt already contains the opening tag.
    pub starts_inside: bool,
}

/// The grammar sources of a requested form: the preferred source, then fallbacks. Empty without constraints.
pub(super) fn sources(
    wish: &GrammarWish,
    markers: &Markers,
    limits: &GrammarLimits,
) -> Result<Vec<Source>, FieldError> {
    let constraint = wish.constraint.as_deref();
    let constraint = constraint.map(|constraint| of_constraint(constraint, limits));
    let constraint = constraint.transpose()?;
    let tools = wish.tools.as_deref().zip(wish.tool_format);
    let framed = |part: Part| messages::framed(part, wish.frame);
    let Some((tools, format)) = tools else {
        let constraint = constraint.map(|(field, part)| (field, framed(part)));
        let source = constraint.map(|(field, part)| writer::write(field, part, markers));
        return Ok(source.transpose()?.into_iter().collect());
    };
    let calls = |arguments| Calls {
        tools,
        format,
        arguments,
        markers,
        limits,
    };
    if format == ToolFormat::GptOss {
        let constraint = constraint.map(|(_, part)| part);
        return messages::sources(&calls, constraint, wish.frame, markers);
    }
    let is_strict = tools.tools.iter().any(|tool| tool.strict);
    let parts = match (&tools.choice, constraint) {
        (ToolChoice::Auto | ToolChoice::Allowed, Some((_, part))) => {
            let calls = calls(Arguments::OnlyStrict).only()?;
            vec![Part::Choice(vec![part, calls])]
        }
        (ToolChoice::Auto, None) if !is_strict => Vec::new(),
        (ToolChoice::Auto | ToolChoice::Allowed, None) => {
            vec![calls(Arguments::OnlyStrict).free()?]
        }
        (ToolChoice::Required | ToolChoice::Named(_), _) => {
            vec![
                calls(Arguments::Typed).only()?,
                calls(Arguments::OnlyStrict).only()?,
            ]
        }
    };
    let written = parts
        .into_iter()
        .map(|part| writer::write("tools", part, markers));
    written.collect()
}

/// The part of a constraint, and the field that errors name.
fn of_constraint(
    constraint: &Constraint,
    limits: &GrammarLimits,
) -> Result<(&'static str, Part), FieldError> {
    Ok(match constraint {
        Constraint::JsonObject(whitespace) => {
            check_whitespace(whitespace, limits)?;
            let (schema, whitespace) = (json!({"type": "object"}), whitespace.clone());
            ("json_object", Part::Json { schema, whitespace })
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
            let whitespace = whitespace.clone();
            ("json_schema", Part::Json { schema, whitespace })
        }
        Constraint::Regex(pattern) => {
            let body = regex::whole_match("regex", pattern, limits)?;
            ("regex", Part::Terminal(body))
        }
        Constraint::Choice(texts) => ("choice", choice(texts, limits)?),
        Constraint::Ebnf(grammar) => (
            "ebnf",
            Part::Grammar(ebnf::to_lark("ebnf", grammar, limits)?),
        ),
        Constraint::StructuralTag(tag) => ("structural_tag", structural_tag::read(tag, limits)?),
    })
}

fn choice(texts: &[String], limits: &GrammarLimits) -> Result<Part, FieldError> {
    if texts.is_empty() {
        let reason = "choice is empty: send at least one text";
        return Err(FieldError::new("choice", reason));
    }
    check_bytes("choice", texts.iter().map(String::len).sum(), limits)?;
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    Ok(Part::Terminal(texts.join(" | ")))
}

fn check_whitespace(whitespace: &JsonWhitespace, limits: &GrammarLimits) -> Result<(), FieldError> {
    match whitespace {
        JsonWhitespace::Pattern(pattern) => {
            regex::rewrite("whitespace_pattern", pattern, limits).map(drop)
        }
        JsonWhitespace::Bounded | JsonWhitespace::Compact => Ok(()),
    }
}
