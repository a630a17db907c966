//! Writes arguments in Gemma 4's format: `row:4,who:<|"|>Ada<|"|>,meal:{hot:true}`.
//!
//! Numbers, true, false and null are written as in JSON. Strings are raw texts between two tags, so lists and objects
//! are written item by item where their schemas allow it.

use serde_json::Value;

use super::schemas::{properties, resolved, with_definitions};
use super::values::Notation;
use super::xml::string_terminals;
use crate::part::{Free, Part};
use souffleur_base::error::FieldError;

/// The tag before and after a string.
const QUOTE: &str = "<|\"|>";
const NOTATION: Notation = Notation {
    whole,
    literal,
    key,
    separator: ",",
};

/// Writes the arguments of an object's schema, in the schema's order.
///
/// # Errors
/// Names the property or keyword that the format cannot express.
pub(super) fn arguments(field: &str, schema: &Value) -> Result<Part, FieldError> {
    let mut fields = Vec::new();
    for property in properties(field, schema)? {
        let name = property.name;
        let reason = match (key(name), NOTATION.value(property.schema, schema)) {
            (Some(key), Some(value)) => {
                let part = Part::Sequence(vec![Part::text(key), value]);
                fields.push((part, property.presence));
                continue;
            }
            (None, _) => {
                "cannot be a key in this model's tool call format: rename it, with only letters, digits, _, - and ."
            }
            (_, None) => {
                "has a schema that cannot be written in this model's tool call format: make it simpler"
            }
        };
        return Err(FieldError::new(
            field,
            format!("{field} the property {name:?} {reason}"),
        ));
    }
    Ok(Part::Fields {
        fields,
        separator: NOTATION.separator.to_owned(),
    })
}

pub(super) fn any_arguments() -> Part {
    // Values nest at most two levels. They are parts, because only parts can express strings with any text but the tag.
    let word = "/-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null/";
    let mut value = Part::Choice(vec![Part::Terminal(word.to_owned()), text(Vec::new())]);
    for _ in 0..2 {
        let list = between(
            "[",
            Some(Part::separated(value.clone(), Part::text(","))),
            "]",
        );
        let map = between("{", Some(any_pairs(value.clone())), "}");
        value = Part::Choice(vec![value, list, map]);
    }
    optional(any_pairs(value))
}

fn any_pairs(value: Part) -> Part {
    let key = Part::Terminal("/[A-Za-z_][A-Za-z0-9_\\-.]*/".to_owned());
    let pair = Part::Sequence(vec![key, Part::text(":"), value]);
    Part::separated(pair, Part::text(","))
}

/// Brackets with optional content.
fn between(open: &str, inside: Option<Part>, close: &str) -> Part {
    let inside = inside.map_or(Part::Sequence(Vec::new()), optional);
    Part::Sequence(vec![Part::text(open), inside, Part::text(close)])
}

fn optional(part: Part) -> Part {
    Part::Choice(vec![part, Part::Sequence(Vec::new())])
}

fn is_key(name: &str) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.chars().all(is_allowed)
}

fn key(name: &str) -> Option<String> {
    is_key(name).then(|| format!("{name}:"))
}

/// A string whose text matches all of the terminals.
fn text(matches: Vec<String>) -> Part {
    let free = Free {
        excludes: vec![QUOTE.to_owned()],
        matches,
        is_plain: true,
        ..Free::default()
    };
    Part::Tag {
        begin: QUOTE.to_owned(),
        content: Box::new(Part::Free(free)),
        ends: vec![QUOTE.to_owned()],
    }
}

/// Writes strings whose only constraints are lengths and a pattern, and values that JSON writes in the same way.
/// `None` for a list of types: unlike in XML, null and a string are written differently.
fn whole(schema: &Value, root: &Value) -> Option<Part> {
    let schema = resolved(schema, root);
    match schema.get("type")?.as_str()? {
        "string" => string_terminals(schema, root).map(text),
        "boolean" | "null" | "integer" | "number" => {
            Some(Part::json(with_definitions(schema, root)))
        }
        _ => None,
    }
}

fn literal(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.contains(QUOTE) => Some(format!("{QUOTE}{text}{QUOTE}")),
        Value::Null | Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}
