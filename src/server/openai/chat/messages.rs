//! A chat's messages, checked and with their text parts joined.

use serde_json::{Map, Value};

use crate::field::{Cut, Field, Shallow};
use crate::server::error::ApiError;

/// The roles of OpenAI's messages.
const ROLES: [&str; 6] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
];

/// Reads `messages`: an array of objects that the chat template can render.
pub(super) fn read(value: Option<Value>) -> Result<Value, ApiError> {
    let items = match value {
        Some(Value::Array(items)) => items,
        Some(other) => return Err(mismatch("messages", &other, "a list of messages")),
        None => {
            return Err(ApiError::field(
                "messages",
                "messages is missing: send a list",
            ));
        }
    };
    if items.is_empty() {
        return Err(ApiError::field(
            "messages",
            "messages is empty: send at least one message",
        ));
    }
    let items = items.into_iter().enumerate();
    let messages: Result<Vec<Value>, ApiError> = items
        .map(|(index, item)| message(&format!("messages[{index}]"), item).map(Value::Object))
        .collect();
    messages.map(Value::Array)
}

fn message(name: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    let mut message = object(name, value)?;
    let is_user = role(name, &message)? == "user";
    let content = match message.get_mut("content").map(Value::take) {
        None | Some(Value::Null) if is_user => {
            let param = format!("{name}.content");
            let text = format!("{param} is missing: send a string or a list of text parts");
            return Err(ApiError::field(param, text));
        }
        // An assistant that called tools says nothing.
        None | Some(Value::Null) => Value::String(String::new()),
        Some(Value::Array(parts)) => Value::String(joined(&format!("{name}.content"), parts)?),
        Some(text @ Value::String(_)) => text,
        Some(other) => {
            let wanted = "a string or a list of text parts";
            return Err(mismatch(&format!("{name}.content"), &other, wanted));
        }
    };
    message.insert("content".to_owned(), content);
    Ok(message)
}

fn role<'a>(name: &str, message: &'a Map<String, Value>) -> Result<&'a str, ApiError> {
    let param = format!("{name}.role");
    match message.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => Ok(role),
        Some(other) => {
            let wanted = format!("one of {}", ROLES.join(", "));
            Err(mismatch(&param, other, &wanted))
        }
        None => {
            let text = format!("{param} is missing: send system, user or assistant");
            Err(ApiError::field(param, text))
        }
    }
}

/// The texts of the parts with a space between them, as SGLang joins them for templates that take strings.
fn joined(name: &str, parts: Vec<Value>) -> Result<String, ApiError> {
    let texts: Result<Vec<String>, ApiError> = parts
        .into_iter()
        .enumerate()
        .map(|(index, part)| text_of(&format!("{name}[{index}]"), part))
        .collect();
    Ok(texts?.join(" "))
}

fn text_of(name: &str, part: Value) -> Result<String, ApiError> {
    let mut part = object(name, part)?;
    match part.get("type").and_then(Value::as_str) {
        Some("text") => (),
        kind => {
            let kind = kind.map_or_else(|| "missing".to_owned(), |kind| Cut(kind).to_string());
            let text = format!("{name}.type is {kind}, only \"text\" is supported");
            return Err(ApiError::field(format!("{name}.type"), text));
        }
    }
    let text = part.get_mut("text").map_or(Value::Null, Value::take);
    string(&format!("{name}.text"), text)
}

fn object(name: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(mismatch(name, &other, "an object")),
    }
}

fn string(name: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(mismatch(name, &other, "a string")),
    }
}

fn mismatch(name: &str, value: &Value, wanted: &str) -> ApiError {
    Field::new(name, &Shallow::of(value)).must_be(wanted).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refuses(messages: Value, expected: &str) {
        assert_eq!(
            read(Some(messages)).expect_err("is refused").to_string(),
            expected
        );
    }

    #[test]
    fn text_parts_are_joined_and_other_keys_kept() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let messages = json!([
            {"role": "user", "content": parts, "name": "x"},
            {"role": "assistant", "content": null},
        ]);
        let expected = json!([
            {"role": "user", "content": "a b", "name": "x"},
            {"role": "assistant", "content": ""},
        ]);
        assert_eq!(read(Some(messages)), Ok(expected));
    }

    #[test]
    fn errors_name_the_place() {
        refuses(json!([]), "messages is empty: send at least one message");
        refuses(
            json!("hi"),
            "messages is \"hi\", must be a list of messages",
        );
        refuses(json!(["hi"]), "messages[0] is \"hi\", must be an object");
        let no_role = "messages[0].role is missing: send system, user or assistant";
        refuses(json!([{"content": "hi"}]), no_role);
        let roles = "one of system, user, assistant, tool, developer, function";
        let unknown = json!([{"role": "bot", "content": "hi"}]);
        refuses(
            unknown,
            &format!("messages[0].role is \"bot\", must be {roles}"),
        );
        let unknown = json!([{"role": 5, "content": "hi"}]);
        refuses(unknown, &format!("messages[0].role is 5, must be {roles}"));
        let silent = "messages[0].content is missing: send a string or a list of text parts";
        refuses(json!([{"role": "user", "content": null}]), silent);
        refuses(json!([{"role": "user"}]), silent);
        let number = json!([{"role": "user", "content": 7}]);
        refuses(
            number,
            "messages[0].content is 7, must be a string or a list of text parts",
        );
        let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        refuses(
            image,
            "messages[0].content[0].type is \"image_url\", only \"text\" is supported",
        );
    }
}
