//! Writes arguments as Python keyword arguments: `row=4, light=True`.
//!
//! JSON strings and numbers are valid in Python. A value that may contain true, false or null is written item by item
//! where its schema allows it.

use serde_json::{Value, json};

use super::schemas::{constants, properties, resolved, with_definitions};
use super::values::{MAX_DEPTH, Notation};
use crate::part::Part;
use souffleur_base::error::FieldError;

const NOTATION: Notation = Notation {
    whole,
    literal,
    key,
    separator: ", ",
};

/// Writes the arguments of an object's schema, in the schema's order.
///
/// # Errors
/// Names the property or keyword that the format cannot express.
pub(super) fn arguments(field: &str, schema: &Value) -> Result<Part, FieldError> {
    let properties = properties(field, schema)?;
    let mut fields = Vec::new();
    for property in properties {
        let name = property.name;
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            let reason =
                format!("{field} the property {name:?} is not a Python identifier: rename it");
            return Err(FieldError::new(field, reason));
        }
        let Some(value) = NOTATION.value(property.schema, schema) else {
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
        separator: NOTATION.separator.to_owned(),
    })
}

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

/// Writes values that cannot contain true, false or null as JSON.
fn whole(schema: &Value, root: &Value) -> Option<Part> {
    let is_json = !may_have_words(schema, root, 0);
    is_json.then(|| Part::json(with_definitions(schema, root)))
}

fn key(name: &str) -> Option<String> {
    Some(format!("{}: ", Value::from(name)))
}

fn literal(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => return None,
    })
}

/// Whether a value may contain true, false or null, which Python writes differently.
fn may_have_words(schema: &Value, root: &Value, depth: usize) -> bool {
    let schema = resolved(schema, root);
    let Some(object) = schema.as_object().filter(|_| depth < MAX_DEPTH) else {
        return *schema != json!(false);
    };
    if let Some(values) = constants(object) {
        let mut values = values.into_iter();
        return values.any(|value| !value.is_string() && !value.is_number());
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
