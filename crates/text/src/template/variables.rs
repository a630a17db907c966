//! Converts a request's data to the variables of a template.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::super::SpecialTokens;
use super::super::calls::CallForm;
use super::super::jinja::{Fault, MAX_DEPTH, Value};
use super::super::refusal::invalid;
use souffleur_base::error::RequestError;

pub(super) fn of_tokens(special: &SpecialTokens) -> BTreeMap<&'static str, String> {
    [
        ("bos_token", &special.bos),
        ("eos_token", &special.eos),
        ("pad_token", &special.pad),
        ("unk_token", &special.unk),
    ]
    .into_iter()
    .filter_map(|(name, token)| Some((name, token.clone()?)))
    .collect()
}

pub(super) fn of_json(json: &Json) -> Result<Value, RequestError> {
    Value::from_json(json).map_err(too_deep)
}

/// Parses the tools of a request, with all fields in their order and all digits of numbers.
pub(super) fn of_tools(tools: &RawValue) -> Result<Value, RequestError> {
    match Value::parse_json(tools.get()) {
        Some(tools) => Ok(tools),
        None => {
            let reason = "tools are nested too deeply, or contain a number of more than 4300 digits: simplify them";
            invalid(reason.to_owned())
        }
    }
}

/// Adds an empty schema and an empty description to tools without them; `None` if all tools have both.
pub(super) fn with_parameters(tools: &Value) -> Option<Value> {
    let Value::List(tools) = tools else {
        return None;
    };
    let mut completed = Vec::with_capacity(tools.len());
    let mut is_changed = false;
    for tool in tools.iter() {
        let complete = complete_tool(tool);
        is_changed |= complete.is_some();
        completed.push(complete.unwrap_or_else(|| tool.clone()));
    }
    is_changed.then(|| Value::list(completed).ok()).flatten()
}

fn complete_tool(tool: &Value) -> Option<Value> {
    let function = tool.field("function")?;
    let is_missing = |name: &str| matches!(function.field(name), None | Some(Value::None));
    let mut fields = Vec::new();
    let mut add = |name: &str, value: Value| fields.push((Value::text(name), value));
    for (name, value) in function.fields() {
        add(name, value.clone());
    }
    let count = function.fields().count();
    if is_missing("description") {
        add("description", Value::text(""));
    }
    if is_missing("parameters") {
        let kind = (Value::text("type"), Value::text("object"));
        let none = (Value::text("properties"), Value::dict(Vec::new()).ok()?);
        add("parameters", Value::dict(vec![kind, none]).ok()?);
    }
    if fields.len() == count {
        return None;
    }
    let entries = tool
        .fields()
        .map(|(name, value)| (Value::text(name), value.clone()));
    let function = (Value::text("function"), Value::dict(fields).ok()?);
    Value::dict(entries.chain([function]).collect()).ok()
}

pub(super) fn of_messages(messages: &[Json], form: CallForm) -> Result<Value, RequestError> {
    let messages = messages.iter().map(|message| of_message(message, form));
    Value::list(messages.collect::<Result<_, _>>()?).map_err(too_deep)
}

/// Converts a message. Arguments of calls in strings become objects if the template expects objects.
fn of_message(message: &Json, form: CallForm) -> Result<Value, RequestError> {
    let Some(fields) = message.as_object() else {
        return of_json(message);
    };
    let mut entries = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let value = match (name.as_str(), value) {
            ("tool_calls", Json::Array(calls)) => {
                let calls = calls.iter().map(|call| of_call(call, form));
                Value::list(calls.collect::<Result<_, _>>()?).map_err(too_deep)?
            }
            _ => of_json(value)?,
        };
        entries.push((Value::text(name.as_str()), value));
    }
    Value::dict(entries).map_err(too_deep)
}

fn of_call(call: &Json, form: CallForm) -> Result<Value, RequestError> {
    let arguments = call.pointer("/function/arguments");
    let parsed = arguments.map_or(Ok(None), |arguments| form.arguments_of(arguments));
    let (Some(fields), Some(parsed)) = (call.as_object(), parsed?) else {
        return of_json(call);
    };
    let mut entries = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let value = match (name.as_str(), value) {
            ("function", Json::Object(function)) => {
                let mut inner = Vec::with_capacity(function.len());
                for (name, value) in function {
                    let value = match name.as_str() {
                        "arguments" => parsed.clone(),
                        _ => of_json(value)?,
                    };
                    inner.push((Value::text(name.as_str()), value));
                }
                Value::dict(inner).map_err(too_deep)?
            }
            _ => of_json(value)?,
        };
        entries.push((Value::text(name.as_str()), value));
    }
    Value::dict(entries).map_err(too_deep)
}

pub(super) fn too_deep(_: Fault) -> RequestError {
    RequestError::Invalid(format!(
        "messages, tools or chat_template_kwargs are nested more than {MAX_DEPTH} levels deep: simplify them"
    ))
}
