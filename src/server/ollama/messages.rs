//! Converts Ollama's messages to OpenAI's: thoughts and names of tools have other fields, and calls have no ids.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::messages::read_adapted;
use crate::openai::json_values::optional_text;

/// Reads `messages`, at least one.
pub(super) fn read(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut calls = Calls::default();
    read_adapted(fields, |path, message| {
        adapt(path, message)?;
        match message.get("role").and_then(Value::as_str) {
            Some("assistant") => calls.begin(message),
            Some("tool") => return calls.end(path, message),
            _ => (),
        }
        Ok(())
    })
}

fn adapt(path: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    if let Some(Value::String(role)) = message.get_mut("role") {
        role.make_ascii_lowercase();
    }
    let content = message.entry("content").or_insert(Value::Null);
    if content.is_null() {
        *content = Value::String(String::new());
    }
    match message.shift_remove("images") {
        None | Some(Value::Null) => (),
        Some(Value::Array(images)) if images.is_empty() => (),
        Some(_) => {
            let path = format!("{path}.images");
            let text =
                format!("{path} is not supported: the model reads text only, send no images");
            return Err(ApiError::field(path, text));
        }
    }
    optional_text(message, path, "thinking")?;
    if let Some(thinking) = message.shift_remove("thinking") {
        message.entry("reasoning_content").or_insert(thinking);
    }
    Ok(())
}

/// Gives ids to calls and to their results, which templates may need. Ollama's clients send a result with the name of
/// the tool, or with nothing.
#[derive(Default)]
struct Calls {
    /// Id and name of each call without a result, in order.
    open: VecDeque<(String, String)>,
    count: usize,
}

impl Calls {
    fn begin(&mut self, message: &mut Map<String, Value>) {
        self.open.clear();
        let Some(Value::Array(calls)) = message.get_mut("tool_calls") else {
            return;
        };
        for call in calls.iter_mut().filter_map(Value::as_object_mut) {
            let function = call.get_mut("function").and_then(Value::as_object_mut);
            let Some(function) = function else {
                continue;
            };
            function.shift_remove("index");
            let name = function.get("name").and_then(Value::as_str);
            let name = name.unwrap_or_default().to_owned();
            let id = match call.get("id") {
                Some(Value::String(id)) if !id.is_empty() => id.clone(),
                None | Some(Value::Null | Value::String(_)) => {
                    let id = format!("call_{}", self.count);
                    call.insert("id".to_owned(), id.as_str().into());
                    id
                }
                // An id of another type is refused later.
                Some(_) => continue,
            };
            self.count += 1;
            self.open.push_back((id, name));
        }
    }

    fn end(&mut self, path: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
        let tool = optional_text(message, path, "tool_name")?.map(str::to_owned);
        message.shift_remove("tool_name");
        let id = optional_text(message, path, "tool_call_id")?.filter(|id| !id.is_empty());
        let is_of = |(call, name): &(String, String)| match (id, &tool) {
            (Some(id), _) => call == id,
            (None, Some(tool)) => name == tool,
            (None, None) => true,
        };
        let place = self.open.iter().position(is_of);
        let Some((id, name)) = place.and_then(|place| self.open.remove(place)) else {
            if let Some(tool) = tool {
                message.insert("name".to_owned(), tool.into());
            }
            return Ok(());
        };
        message.insert("tool_call_id".to_owned(), id.into());
        message.insert("name".to_owned(), tool.unwrap_or(name).into());
        Ok(())
    }
}
