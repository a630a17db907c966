//! Checks messages and converts them to the form that templates expect.

use serde_json::{Map, Value};

use crate::calls::Calls;
use crate::chat::{ContentFormat, Forms, IMAGE, ReasoningForm};
use crate::refusal::invalid;
use souffleur_base::error::RequestError;

/// Checks the messages and returns them as the template expects: `content` is always present, and roles and call
/// ids are ones that the template accepts.
pub(super) fn normalize(messages: &Value, expected: Forms) -> Result<Vec<Value>, RequestError> {
    let Some(messages) = messages.as_array().filter(|messages| !messages.is_empty()) else {
        return invalid(
            "messages is not a list with at least one message: send \
             [{\"role\": \"user\", \"content\": ...}]"
                .to_owned(),
        );
    };
    let mut calls = Calls::new(expected.calls);
    let numbered = messages.iter().enumerate();
    numbered
        .map(|(index, message)| normalize_message(index, message, expected, &mut calls))
        .collect()
}

fn normalize_message(
    index: usize,
    message: &Value,
    expected: Forms,
    calls: &mut Calls,
) -> Result<Value, RequestError> {
    let Some(fields) = message.as_object() else {
        return invalid(format!(
            "messages[{index}] is not an object: send role and content"
        ));
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        return invalid(format!(
            "messages[{index}].role is not a string: send system, user or assistant"
        ));
    }
    let mut fields = fields.clone();
    let content = match fields.get("content") {
        None | Some(Value::Null) => Value::from(""),
        Some(Value::String(text)) => Value::from(text.as_str()),
        Some(Value::Array(parts)) => {
            let is_image = |part: &Value| part["type"] == IMAGE;
            match expected.content {
                ContentFormat::Text => Value::from(texts_of(index, parts)?.join(" ")),
                ContentFormat::PartsWithImages if parts.iter().any(is_image) => {
                    let texts = parts.iter().enumerate().filter(|it| !is_image(it.1));
                    texts_among(index, texts)?;
                    Value::from(parts.clone())
                }
                ContentFormat::Parts | ContentFormat::PartsWithImages => {
                    texts_of(index, parts)?;
                    Value::from(parts.clone())
                }
            }
        }
        Some(_) => {
            return invalid(format!(
                "messages[{index}].content is neither a string nor a list of parts: send text"
            ));
        }
    };
    fields.insert("content".to_owned(), content);
    if fields["role"] == "developer" && !expected.knows_developer {
        fields.insert("role".to_owned(), Value::from("system"));
    }
    calls.normalize(&mut fields)?;
    copy_reasoning(&mut fields, expected.reasoning);
    Ok(Value::Object(fields))
}

/// Copies the reasoning of a message to both fields that templates read, `reasoning_content` and `thinking`.
fn copy_reasoning(message: &mut Map<String, Value>, form: ReasoningForm) {
    const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let reasoning = NAMES.iter().find_map(|name| message.get(*name)?.as_str());
    let Some(reasoning) = reasoning.map(str::to_owned) else {
        return;
    };
    let name = "thinking";
    message.insert(NAMES[0].to_owned(), Value::from(reasoning.as_str()));
    if !message.get(name).is_some_and(Value::is_string) {
        message.insert(name.to_owned(), Value::from(reasoning));
    }
    let has_calls = message.contains_key("tool_calls");
    if form != ReasoningForm::InsteadOfContent || !has_calls {
        return;
    }
    // Such a template renders only one of the two, so content is appended to the reasoning.
    if let Some(content) = message.get("content").and_then(Value::as_str)
        && !content.is_empty()
        && let Some(reasoning) = message[name].as_str()
    {
        let both = if reasoning.is_empty() {
            content.to_owned()
        } else {
            format!("{reasoning}\n{content}")
        };
        message.insert(name.to_owned(), Value::from(both));
        message.insert("content".to_owned(), Value::from(""));
    }
}

fn texts_of(index: usize, parts: &[Value]) -> Result<Vec<&str>, RequestError> {
    texts_among(index, parts.iter().enumerate())
}

/// The texts of parts, which come with their indices.
fn texts_among<'a>(
    index: usize,
    parts: impl Iterator<Item = (usize, &'a Value)>,
) -> Result<Vec<&'a str>, RequestError> {
    parts
        .map(|(part_index, part)| match (&part["type"], &part["text"]) {
            (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text.as_str()),
            (Value::String(kind), _) if kind != "text" => invalid(format!(
                "messages[{index}].content[{part_index}] has type {kind:?}, only \"text\" is supported: send text \
                 parts only"
            )),
            _ => invalid(format!(
                "messages[{index}].content[{part_index}] is not a text part: send {{\"type\": \"text\", \"text\": ...}}"
            )),
        })
        .collect()
}
