//! Reads fields of parsed JSON values, with errors that name the field's path.

use serde_json::{Map, Value};

use crate::error::ApiError;
use souffleur_base::field::{Field, Shallow};

pub(crate) fn object(path: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(must_be(path, &other, "an object")),
    }
}

pub(crate) fn text<'a>(
    object: &'a Map<String, Value>,
    path: &str,
    name: &str,
) -> Result<&'a str, ApiError> {
    let text = optional_text(object, path, name)?;
    text.ok_or_else(|| missing(format!("{path}.{name}"), "a string"))
}

pub(crate) fn optional_text<'a>(
    object: &'a Map<String, Value>,
    path: &str,
    name: &str,
) -> Result<Option<&'a str>, ApiError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(must_be(&format!("{path}.{name}"), other, "a string")),
    }
}

pub(crate) fn optional_flag(
    object: &Map<String, Value>,
    path: &str,
    name: &str,
) -> Result<Option<bool>, ApiError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(must_be(&format!("{path}.{name}"), other, "true or false")),
    }
}

pub(crate) fn missing(path: String, send: &str) -> ApiError {
    let text = format!("{path} is missing: send {send}");
    ApiError::field(path, text)
}

pub(crate) fn must_be(path: &str, value: &Value, wanted: &str) -> ApiError {
    Field::new(path, &Shallow::of(value)).must_be(wanted).into()
}
