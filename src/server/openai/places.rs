//! Parses parts of JSON values, with their paths for errors.

use serde_json::{Map, Value};

use crate::field::{Field, Shallow};
use crate::server::error::ApiError;

pub(in crate::server) fn object(path: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(must_be(path, &other, "an object")),
    }
}

pub(in crate::server) fn text<'a>(
    object: &'a Map<String, Value>,
    path: &str,
    name: &str,
) -> Result<&'a str, ApiError> {
    let text = optional_text(object, path, name)?;
    text.ok_or_else(|| missing(format!("{path}.{name}"), "a string"))
}

/// A text that may be absent or null.
pub(in crate::server) fn optional_text<'a>(
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

/// True or false, if it is there and not null.
pub(in crate::server) fn optional_flag(
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

pub(in crate::server) fn missing(path: String, send: &str) -> ApiError {
    let text = format!("{path} is missing: send {send}");
    ApiError::field(path, text)
}

pub(in crate::server) fn must_be(path: &str, value: &Value, wanted: &str) -> ApiError {
    Field::new(path, &Shallow::of(value)).must_be(wanted).into()
}
