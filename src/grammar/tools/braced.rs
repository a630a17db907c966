//! Arguments as Gemma 4 writes them: `row:4,who:<|"|>Ada<|"|>,meal:{hot:true}`.
//!
//! Numbers, true, false and null are JSON's. Strings stand between two tags as they are, so that everything else is taken
//! apart, as far as a schema can be.

use serde_json::Value;

use super::xml::{Property, properties, resolved, text_of, with_definitions};
use crate::error::FieldError;
use crate::grammar::part::{Free, Part};

/// The tag on both sides of a string.
const QUOTE: &str = "<|\"|>";
/// How deep values are taken apart.
const MAX_DEPTH: usize = 8;

/// The arguments of an object's schema, in its order.
///
/// # Errors
/// Names the property or keyword that has no form here.
pub(super) fn arguments(field: &str, schema: &Value) -> Result<Part, FieldError> {
    let mut fields = Vec::new();
    for property in properties(field, schema)? {
        let name = property.name;
        let reason = match (is_key(name), pair(&property, schema, 0)) {
            (true, Some(part)) => {
                fields.push((part, property.presence));
                continue;
            }
            (false, _) => "cannot be a key in this model's form of calls: rename it",
            (true, None) => {
                "has a schema that cannot be written in this model's form of calls: make it simpler"
            }
        };
        return Err(FieldError::new(
            field,
            format!("{field} the property {name:?} {reason}"),
        ));
    }
    Ok(Part::Fields {
        fields,
        separator: ",".to_owned(),
    })
}

/// Any arguments.
pub(super) fn any_arguments() -> Part {
    // Two deep: a string may hold anything but its tag, and parts know tags.
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

/// Brackets with something between them, or nothing.
fn between(open: &str, inside: Option<Part>, close: &str) -> Part {
    let inside = inside.map_or(Part::Sequence(Vec::new()), optional);
    Part::Sequence(vec![Part::text(open), inside, Part::text(close)])
}

fn optional(part: Part) -> Part {
    Part::Choice(vec![part, Part::Sequence(Vec::new())])
}

fn is_key(name: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.chars().all(is_letter)
}

fn pair(property: &Property<'_>, root: &Value, depth: usize) -> Option<Part> {
    let value = value(property.schema, root, depth)?;
    let key = Part::text(format!("{}:", property.name));
    is_key(property.name).then(|| Part::Sequence(vec![key, value]))
}

/// A string with letters that all of some terminals match.
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

/// A value; `None` if it cannot be written.
fn value(schema: &Value, root: &Value, depth: usize) -> Option<Part> {
    if depth > MAX_DEPTH {
        return None;
    }
    let schema = resolved(schema, root);
    let object = schema.as_object()?;
    if let Some(values) = object.get("enum").and_then(Value::as_array) {
        let values = values.iter().map(|value| Some(Part::text(literal(value)?)));
        return Some(Part::Choice(values.collect::<Option<_>>()?));
    }
    if let Some(value) = object.get("const") {
        return Some(Part::text(literal(value)?));
    }
    if let Some(options) = object.get("anyOf").filter(|_| object.len() == 1) {
        let options = options.as_array()?.iter();
        let options = options.map(|option| value(option, root, depth + 1));
        return Some(Part::Choice(options.collect::<Option<_>>()?));
    }
    // Of more types than one each is taken by itself: null is no string here.
    let is_string = object.get("type").is_some_and(|name| name == "string");
    if let Some(matches) = text_of(schema, root).filter(|_| is_string) {
        return Some(text(matches));
    }
    match object.get("type")? {
        Value::String(name) => typed(name, schema, root, depth),
        Value::Array(names) => {
            let names = names.iter().map(|name| {
                let mut one = object.clone();
                one.insert("type".to_owned(), name.clone());
                value(&Value::Object(one), root, depth + 1)
            });
            Some(Part::Choice(names.collect::<Option<_>>()?))
        }
        _ => None,
    }
}

fn typed(name: &str, schema: &Value, root: &Value, depth: usize) -> Option<Part> {
    match name {
        "boolean" | "null" | "integer" | "number" => {
            Some(Part::json(with_definitions(schema, root)))
        }
        "array" => {
            let known = ["type", "items", "minItems", "maxItems"];
            let object = schema.as_object()?;
            if object.keys().any(|key| !known.contains(&key.as_str())) {
                return None;
            }
            let item = value(object.get("items")?, root, depth + 1)?;
            let count = |name: &str| match object.get(name) {
                None => Some(None),
                Some(count) => u32::try_from(count.as_u64()?).ok().map(Some),
            };
            super::pythonic::list(
                item,
                ",",
                count("minItems")?.unwrap_or(0),
                count("maxItems")?,
            )
        }
        "object" => {
            let mut fields = Vec::new();
            for property in properties("", schema).ok()? {
                fields.push((pair(&property, root, depth + 1)?, property.presence));
            }
            let fields = Part::Fields {
                fields,
                separator: ",".to_owned(),
            };
            Some(between("{", Some(fields), "}"))
        }
        _ => None,
    }
}

/// A constant as it is written.
fn literal(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.contains(QUOTE) => Some(format!("{QUOTE}{text}{QUOTE}")),
        Value::Null | Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}
