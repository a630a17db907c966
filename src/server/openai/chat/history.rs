//! Converts the tool calls of earlier messages to the form that chat templates expect.

use serde_json::{Map, Value, json};

use crate::digits;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::json_values::{must_be, object, optional_text, text};
use crate::raw::Raw;

/// Converts the calls of a message: their arguments become objects, and an empty list of calls is removed. `raw` is
/// the message's JSON text, if parsing it to `message` may have changed digits of numbers.
pub(super) fn read_calls(
    fields: &mut Fields,
    name: &str,
    message: &mut Map<String, Value>,
    raw: Option<&Raw>,
) -> Result<(), ApiError> {
    const NAME: &str = "tool_calls";
    let path = format!("{name}.{NAME}");
    match message.get_mut(NAME) {
        None => Ok(()),
        Some(Value::Array(calls)) if calls.is_empty() => {
            message.shift_remove(NAME);
            Ok(())
        }
        Some(Value::Array(calls)) => {
            let raw = raw.map_or_else(Vec::new, |raw| functions(raw, calls.len()));
            let mut calls = calls.iter_mut().enumerate();
            calls.try_for_each(|(index, call)| {
                let path = format!("{path}[{index}]");
                read_call(fields, &path, call, raw.get(index))
            })
        }
        Some(other) => Err(must_be(&path, other, "a list of calls")),
    }
}

fn functions(raw: &Raw, count: usize) -> Vec<Raw> {
    let calls = raw.field("tool_calls");
    let Some(calls) = calls.filter(|calls| !calls.has_no_effect()) else {
        return raw.field("function_call").into_iter().collect();
    };
    let calls = calls.items("tool_calls", count).unwrap_or_default().0;
    // A call without a function is refused later.
    calls
        .iter()
        .map_while(|call| call.field("function"))
        .collect()
}

fn read_call(
    fields: &mut Fields,
    path: &str,
    value: &mut Value,
    raw: Option<&Raw>,
) -> Result<(), ApiError> {
    let mut call = object(path, value.take())?;
    match optional_text(&call, path, "type")? {
        None | Some("function") => (),
        Some(_) => {
            let wanted = "\"function\": no other kind of call is supported";
            return Err(must_be(&format!("{path}.type"), &call["type"], wanted));
        }
    }
    optional_text(&call, path, "id")?;
    let path = format!("{path}.function");
    let function = call.get_mut("function").map_or(Value::Null, Value::take);
    let mut function = object(&path, function)?;
    text(&function, &path, "name")?;
    let path = format!("{path}.arguments");
    let arguments = match function.get_mut("arguments").map(Value::take) {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) => arguments(fields, &path, text)?,
        Some(arguments @ Value::Object(_)) => {
            digits::arguments(arguments, raw.and_then(|raw| raw.field("arguments")))
        }
        Some(other) => return Err(must_be(&path, &other, "a string with a JSON object")),
    };
    function.insert("arguments".to_owned(), arguments);
    call.insert("function".to_owned(), Value::Object(function));
    *value = Value::Object(call);
    Ok(())
}

/// Parses arguments to an object, or returns the text if the object would lose digits. Malformed arguments, which a
/// model may write, stay text, so that the conversation can continue.
pub(crate) fn arguments(fields: &mut Fields, path: &str, text: String) -> Result<Value, ApiError> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let raw = Raw::in_text(&text);
    if !raw.is_object() {
        return Ok(Value::String(text));
    }
    // The values count towards the limit of the body even if the text is not valid JSON.
    fields.count_for_prompt(path, &raw)?;
    Ok(match raw.parse_tree(path) {
        Ok(object) if !digits::may_differ(&object) => object,
        _ => Value::String(text),
    })
}

/// Converts the older `function_call` and its `function` messages to tool calls and their results.
#[derive(Default)]
pub(super) struct FunctionCalls {
    last_id: Option<String>,
}

impl FunctionCalls {
    pub(super) fn rename(
        &mut self,
        name: &str,
        role: &str,
        message: &mut Map<String, Value>,
    ) -> Result<(), ApiError> {
        if role == "function" {
            message.insert("role".to_owned(), "tool".into());
            if let Some(id) = &self.last_id {
                message.insert("tool_call_id".to_owned(), id.as_str().into());
            }
        }
        let Some(call) = message.shift_remove("function_call") else {
            return Ok(());
        };
        let path = format!("{name}.function_call");
        let function = object(&path, call)?;
        text(&function, &path, "name")?;
        let id = format!("call_{name}");
        let call = json!({"id": id, "type": "function", "function": function});
        let calls = message.entry("tool_calls").or_insert(Value::Null);
        if calls.is_null() || calls.as_array().is_some_and(Vec::is_empty) {
            *calls = json!([call]);
        }
        self.last_id = Some(id);
        Ok(())
    }
}
