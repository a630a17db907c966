//! Parses the arguments of a tool call: a JSON object, or a string that should contain one.

use serde_json::Value;

use crate::jinja::{Fault, Value as TemplateValue};

/// `Text` holds a string that is not a JSON object.
pub(super) enum CallArguments<'a> {
    Object(TemplateValue),
    Text(&'a str),
    Nothing,
}

impl<'a> CallArguments<'a> {
    pub(super) fn of(function: &'a Value) -> Result<Self, Fault> {
        Ok(match function.get("arguments") {
            Some(Value::String(text)) => match object_of(text) {
                Some(object) => Self::Object(object),
                None => Self::Text(text),
            },
            Some(arguments) => Self::Object(TemplateValue::from_json(arguments)?),
            None => Self::Nothing,
        })
    }
}

pub(super) fn object_of(text: &str) -> Option<TemplateValue> {
    let is_object = text.trim_start().starts_with('{');
    is_object.then(|| TemplateValue::parse_json(text)).flatten()
}
