//! Reads tools' JSON schemas, for call formats that do not write values as JSON.

use serde_json::{Map, Value};

use crate::part::Presence;
use crate::schema;
use souffleur_base::error::FieldError;

pub(super) struct Property<'a> {
    pub(super) name: &'a str,
    pub(super) schema: &'a Value,
    pub(super) presence: Presence,
}

/// Lists the properties of a schema. Fails if the schema has other constraints on the object.
pub(super) fn properties<'a>(
    field: &str,
    schema: &'a Value,
) -> Result<Vec<Property<'a>>, FieldError> {
    let wrong = |what: &str| {
        let reason =
            format!("{field} {what} cannot be written in this model's tool call format: remove it");
        FieldError::new(field, reason)
    };
    let allowed = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "$defs",
        "definitions",
        "$schema",
    ];
    let object = schema
        .as_object()
        .ok_or_else(|| wrong("a schema that is not an object"))?;
    if let Some(name) = object.keys().find(|name| !allowed.contains(&name.as_str())) {
        return Err(wrong(&format!("the keyword {name:?}")));
    }
    let required = object.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = object.get("properties").and_then(Value::as_object);
    let is_named = |name: &str| properties.is_some_and(|all| all.contains_key(name));
    if let Some(name) = required.iter().find(|name| !is_named(name)) {
        return Err(wrong(&format!(
            "the required property {name:?} without a schema"
        )));
    }
    let properties = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| Property {
            name,
            schema,
            presence: if required.contains(&name.as_str()) {
                Presence::Required
            } else {
                Presence::Optional
            },
        });
    Ok(properties.collect())
}

/// The values that a schema enumerates (`enum`, `const`).
pub(super) fn constants(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// The alternatives of `anyOf`, if the schema has no other constraint.
pub(super) fn options(schema: &Map<String, Value>) -> Option<&[Value]> {
    let options = schema.get("anyOf")?.as_array()?;
    let mut others = schema.keys().filter(|name| *name != "anyOf");
    let is_all = others.all(|name| !schema::constrains(name));
    is_all.then_some(options.as_slice())
}

/// Follows a reference to its schema. Returns any other schema unchanged.
pub(super) fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..16 {
        let object = schema.as_object().filter(|object| object.len() == 1);
        let target = object.and_then(|object| object.get("$ref")?.as_str()?.strip_prefix('#'));
        match target.and_then(|target| root.pointer(target)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

/// Copies a part of a schema, and adds the definitions of the root schema.
pub(super) fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name) {
                object.insert(name.to_owned(), definitions.clone());
            }
        }
    }
    schema
}
