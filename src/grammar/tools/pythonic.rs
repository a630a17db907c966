//! Arguments as Python writes them: `row=4, light=True`.
//!
//! JSON's strings and numbers are Python's. What has true, false or null in it is taken apart, as far as a schema can
//! be.

use serde_json::{Value, json};

use super::xml::{properties, resolved, with_definitions};
use crate::error::FieldError;
use crate::grammar::part::{Part, Presence};

/// How deep values are taken apart.
const MAX_DEPTH: usize = 8;

/// The arguments of an object's schema, in its order.
///
/// # Errors
/// Names the property or keyword that has no form here.
pub(super) fn arguments(field: &str, schema: &Value) -> Result<Part, FieldError> {
    let properties = properties(field, schema)?;
    let mut fields = Vec::new();
    for property in properties {
        let name = property.name;
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            let reason = format!("{field} the property {name:?} is no name in Python: rename it");
            return Err(FieldError::new(field, reason));
        }
        let Some(value) = value(property.schema, schema, 0) else {
            let reason = format!(
                "{field} the property {name:?} has a schema that cannot be written in Python: make it simpler"
            );
            return Err(FieldError::new(field, reason));
        };
        let part = Part::Sequence(vec![Part::text(format!("{name}=")), value]);
        fields.push((part, property.presence));
    }
    Ok(Part::Fields {
        fields,
        separator: ", ".to_owned(),
    })
}

/// Any arguments.
pub(super) fn any_arguments() -> Part {
    let lark = r#"start: (argument (", " argument)*)?
argument: NAME "=" value
NAME: /[A-Za-z_][A-Za-z0-9_]*/
value: TEXT | NUMBER | WORD | "[" (value (", " value)*)? "]" | "{" (entry (", " entry)*)? "}"
entry: TEXT ": " value
TEXT: /"(?:[^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/
NUMBER: /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/
WORD: "True" | "False" | "None"
"#;
    Part::Grammar(lark.to_owned())
}

/// A value; `None` if it cannot be written.
fn value(schema: &Value, root: &Value, depth: usize) -> Option<Part> {
    if depth > MAX_DEPTH {
        return None;
    }
    if !may_have_words(schema, root, 0) {
        return Some(Part::json(with_definitions(schema, root)));
    }
    let object = resolved(schema, root).as_object()?;
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
    match object.get("type")? {
        Value::String(name) => typed(name, &Value::Object(object.clone()), root, depth),
        Value::Array(names) => {
            let names = names.iter().map(|name| {
                let mut one = object.clone();
                one.insert("type".to_owned(), name.clone());
                typed(name.as_str()?, &Value::Object(one), root, depth)
            });
            Some(Part::Choice(names.collect::<Option<_>>()?))
        }
        _ => None,
    }
}

fn typed(name: &str, schema: &Value, root: &Value, depth: usize) -> Option<Part> {
    let has_only = |known: &[&str]| {
        let mut names = schema
            .as_object()
            .into_iter()
            .flat_map(|object| object.keys());
        names.all(|name| known.contains(&name.as_str()))
    };
    match name {
        "boolean" => Some(Part::Choice(vec![Part::text("True"), Part::text("False")])),
        "null" => Some(Part::text("None")),
        "string" | "integer" | "number" => Some(Part::json(schema.clone())),
        "array" if has_only(&["type", "items", "minItems", "maxItems"]) => {
            let item = value(schema.get("items")?, root, depth + 1)?;
            let count = |name: &str| match schema.get(name) {
                None => Some(None),
                Some(count) => u32::try_from(count.as_u64()?).ok().map(Some),
            };
            list(
                item,
                ", ",
                count("minItems")?.unwrap_or(0),
                count("maxItems")?,
            )
        }
        "object" => {
            let found = properties("", schema).ok()?;
            let mut fields = Vec::new();
            for property in found {
                let name = Value::from(property.name);
                let value = value(property.schema, root, depth + 1)?;
                let part = Part::Sequence(vec![Part::text(format!("{name}: ")), value]);
                fields.push((part, property.presence));
            }
            let fields = Part::Fields {
                fields,
                separator: ", ".to_owned(),
            };
            Some(Part::Sequence(vec![
                Part::text("{"),
                fields,
                Part::text("}"),
            ]))
        }
        _ => None,
    }
}

/// A list of so many items.
pub(super) fn list(item: Part, separator: &str, least: u32, most: Option<u32>) -> Option<Part> {
    if most.is_some_and(|most| most < least) {
        return None;
    }
    let again = Part::Repeat {
        part: Box::new(Part::Sequence(vec![Part::text(separator), item.clone()])),
        least: least.saturating_sub(1),
        most: most.map(|most| most.saturating_sub(1)),
    };
    let items = Part::Sequence(vec![item, again]);
    let items = match (least, most) {
        (_, Some(0)) => Part::Sequence(Vec::new()),
        (0, _) => Part::Fields {
            fields: vec![(items, Presence::Optional)],
            separator: String::new(),
        },
        _ => items,
    };
    Some(Part::Sequence(vec![
        Part::text("["),
        items,
        Part::text("]"),
    ]))
}

/// A constant in Python.
fn literal(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => return None,
    })
}

/// Whether a value may have true, false or null in it, which Python writes differently.
fn may_have_words(schema: &Value, root: &Value, depth: usize) -> bool {
    let schema = resolved(schema, root);
    let Some(object) = schema.as_object().filter(|_| depth < MAX_DEPTH) else {
        return *schema != json!(false);
    };
    if let Some(values) = object.get("enum").and_then(Value::as_array) {
        return values
            .iter()
            .any(|value| !value.is_string() && !value.is_number());
    }
    let within = |name: &str| {
        let inner = object.get(name);
        inner.is_none_or(|inner| may_have_words(inner, root, depth + 1))
    };
    match object.get("type").and_then(Value::as_str) {
        Some("string" | "integer" | "number") => false,
        Some("array") => within("items") || object.contains_key("prefixItems"),
        Some("object") => {
            let properties = object.get("properties").and_then(Value::as_object);
            let mut properties = properties.into_iter().flatten().map(|(_, schema)| schema);
            within("additionalProperties")
                || object.contains_key("patternProperties")
                || properties.any(|schema| may_have_words(schema, root, depth + 1))
        }
        _ => true,
    }
}
