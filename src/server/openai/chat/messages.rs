//! Checks a chat's messages and converts them to the form that chat templates expect: text parts are joined, arguments
//! of calls become objects, and older names are replaced.

use serde_json::{Map, Value};

use super::history::{self, FunctionCalls};
use crate::digits;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::images::{Content, Encoding, image_part, url_of};
use crate::openai::json_values::{missing, must_be, object, optional_text};
use souffleur_base::field::Cut;

pub(super) const ROLES: [&str; 6] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
];

pub(super) fn read(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    read_adapted(fields, |_, _| Ok(()))
}

/// As [`read`], for another API: `adapt` gets the path of each message, and converts the message to OpenAI's form. It
/// keeps the order of the calls and their arguments.
pub(crate) fn read_adapted(
    fields: &mut Fields,
    mut adapt: impl FnMut(&str, &mut Map<String, Value>) -> Result<(), ApiError>,
) -> Result<Vec<Value>, ApiError> {
    const NAME: &str = "messages";
    let raw = fields.peek(NAME).cloned();
    let items = match fields.take_tree(NAME)? {
        Some(Value::Array(items)) => items,
        Some(other) => return Err(must_be(NAME, &other, "a list of messages")),
        None => return Err(missing(NAME.to_owned(), "a list")),
    };
    if items.is_empty() {
        let text = "messages is empty: send at least one message";
        return Err(ApiError::field(NAME, text));
    }
    let raw = digits::texts_of(raw.as_ref(), &items);
    let mut calls = FunctionCalls::default();
    let items = items.into_iter().enumerate();
    let message = |(index, item): (usize, Value)| {
        let name = format!("{NAME}[{index}]");
        let mut message = object(&name, item)?;
        adapt(&name, &mut message)?;
        let role = role(&name, &message)?;
        normalize(&name, role, &mut message)?;
        if role == "assistant" {
            read_reasoning(&name, &mut message)?;
        }
        calls.rename(&name, role, &mut message)?;
        history::read_calls(fields, &name, &mut message, raw.get(index))?;
        Ok(Value::Object(message))
    };
    items.map(message).collect()
}

/// Converts the content to a text, or to texts and images, and removes null fields: templates test which fields a
/// message has.
fn normalize(name: &str, role: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    let path = format!("{name}.content");
    let content = match message.get_mut("content").map(Value::take) {
        None | Some(Value::Null) if role == "user" => {
            return Err(missing(path, "a string or a list of text parts"));
        }
        // A message of tool calls may have no content; a refusal is in its own field.
        None | Some(Value::Null) => {
            let refusal = optional_text(message, name, "refusal")?;
            Value::from(refusal.unwrap_or_default())
        }
        Some(Value::Array(parts)) => joined(&path, parts)?,
        Some(text @ Value::String(_)) => text,
        Some(other) => return Err(must_be(&path, &other, "a string or a list of text parts")),
    };
    message.insert("content".to_owned(), content);
    message.retain(|_, value| !value.is_null());
    Ok(())
}

/// Renames the reasoning of an earlier answer to `reasoning_content`, the name that templates know.
fn read_reasoning(name: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    const TEMPLATE_NAME: &str = "reasoning_content";
    let reasoning = optional_text(message, name, "reasoning")?.map(str::to_owned);
    message.shift_remove("reasoning");
    match optional_text(message, name, TEMPLATE_NAME)? {
        Some("") => drop(message.shift_remove(TEMPLATE_NAME)),
        Some(_) => return Ok(()),
        None => (),
    }
    if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_empty()) {
        message.insert(TEMPLATE_NAME.to_owned(), reasoning.into());
    }
    Ok(())
}

fn role(name: &str, message: &Map<String, Value>) -> Result<&'static str, ApiError> {
    let path = format!("{name}.role");
    let Some(value) = message.get("role") else {
        return Err(missing(path, "system, user or assistant"));
    };
    let known = ROLES.into_iter().find(|role| value == role);
    known.ok_or_else(|| must_be(&path, value, &format!("one of {}", ROLES.join(", "))))
}

/// Joins the texts of the parts with spaces, as SGLang does for templates that take strings. Images stay parts.
fn joined(name: &str, parts: Vec<Value>) -> Result<Value, ApiError> {
    let mut content = Content::default();
    for (index, part) in parts.into_iter().enumerate() {
        read_part(&format!("{name}[{index}]"), part, &mut content)?;
    }
    Ok(content.into_value(" "))
}

fn read_part(name: &str, part: Value, content: &mut Content) -> Result<(), ApiError> {
    let mut part = object(name, part)?;
    let kind = part.get("type").and_then(Value::as_str);
    let key = match kind {
        Some("text") => "text",
        Some("refusal") => "refusal",
        kind => {
            let is_image = kind == Some("image_url");
            let kind = kind.map_or_else(|| "missing".to_owned(), |kind| Cut(kind).to_string());
            let text = format!("{name}.type is {kind}, only \"text\" is supported");
            let field = format!("{name}.type");
            if !is_image {
                return Err(ApiError::field(field, text));
            }
            let url = Encoding::Url(url_of(&mut part, name)?);
            content.push_image(image_part(name, url, (field, text)));
            return Ok(());
        }
    };
    match part.get_mut(key).map_or(Value::Null, Value::take) {
        Value::String(text) => content.push_text(text),
        other => return Err(must_be(&format!("{name}.{key}"), &other, "a string")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(messages: Value) -> Result<Value, ApiError> {
        let mut fields = Fields::of(&json!({ "messages": messages }));
        read(&mut fields).map(Value::Array)
    }

    #[track_caller]
    fn refuses(messages: Value, expected: &str) {
        assert_eq!(
            parse(messages).expect_err("is refused").to_string(),
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
        assert_eq!(parse(messages), Ok(expected));
    }

    #[test]
    fn errors_name_the_path() {
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
        let no_content = "messages[0].content is missing: send a string or a list of text parts";
        refuses(json!([{"role": "user", "content": null}]), no_content);
        refuses(json!([{"role": "user"}]), no_content);
        let number = json!([{"role": "user", "content": 7}]);
        refuses(
            number,
            "messages[0].content is 7, must be a string or a list of text parts",
        );
        let audio = json!([{"role": "user", "content": [{"type": "input_audio"}]}]);
        refuses(
            audio,
            "messages[0].content[0].type is \"input_audio\", only \"text\" is supported",
        );
        let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        refuses(
            image,
            "messages[0].content[0].image_url is missing: send a URL, or an object with url",
        );
    }

    #[test]
    fn reasoning_has_one_name_and_null_fields_are_removed() {
        let messages = json!([
            {"role": "assistant", "content": "a", "reasoning": "r", "tool_calls": null, "refusal": null},
            {"role": "assistant", "content": "a", "reasoning_content": "r", "reasoning": "other"},
            {"role": "assistant", "content": null, "refusal": "no", "reasoning": "", "tool_calls": []},
            {"role": "user", "content": [{"type": "refusal", "refusal": "x"}]},
        ]);
        let expected = json!([
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {"role": "assistant", "content": "no", "refusal": "no"},
            {"role": "user", "content": "x"},
        ]);
        assert_eq!(parse(messages), Ok(expected));
        let number = json!([{"role": "assistant", "content": "a", "reasoning": 5}]);
        refuses(number, "messages[0].reasoning is 5, must be a string");
    }

    fn calling(function: Value) -> Value {
        let call = json!({"id": "c", "type": "function", "function": function});
        json!([{"role": "assistant", "content": "", "tool_calls": [call]}])
    }

    #[test]
    fn arguments_become_objects_if_they_are_valid_and_lose_no_digits() {
        for (sent, read) in [
            (json!("{\"row\": [4]}"), json!({"row": [4]})),
            (json!({"row": 4}), json!({"row": 4})),
            (
                json!("{\"n\": 12345678901234567890123}"),
                json!("{\"n\": 12345678901234567890123}"),
            ),
            (json!(""), json!({})),
            (json!(null), json!({})),
            (json!("{\"row\": "), json!("{\"row\": ")),
            (json!("row 4"), json!("row 4")),
        ] {
            let messages = calling(json!({"name": "seat", "arguments": sent}));
            let expected = calling(json!({"name": "seat", "arguments": read}));
            assert_eq!(parse(messages), Ok(expected));
        }
    }

    #[test]
    fn invalid_calls_are_refused_with_their_paths() {
        let place = "messages[0].tool_calls";
        let not_a_list = json!([{"role": "assistant", "content": "", "tool_calls": {"a": 1}}]);
        refuses(
            not_a_list,
            &format!("{place} is an object, must be a list of calls"),
        );
        let missing = format!("{place}[0].function.name is missing: send a string");
        refuses(calling(json!({})), &missing);
        let text = format!("{place}[0].function is null, must be an object");
        refuses(calling(json!(null)), &text);
        let wanted = "must be a string with a JSON object";
        let text = format!("{place}[0].function.arguments is a list of 0 items, {wanted}");
        refuses(calling(json!({"name": "f", "arguments": []})), &text);
        let call = json!({"id": 5, "function": {"name": "f"}});
        let messages = json!([{"role": "assistant", "tool_calls": [call]}]);
        refuses(messages, &format!("{place}[0].id is 5, must be a string"));
    }

    #[test]
    fn values_in_arguments_count_towards_the_bodys_limit() {
        let values = format!("{{\"a\": [{}0]}}", "0,".repeat(1100));
        let messages = calling(json!({"name": "f", "arguments": values}));
        let error = parse(messages).expect_err("is refused").to_string();
        let place = "messages[0].tool_calls[0].function.arguments holds 1103 JSON values";
        assert!(error.starts_with(place), "{error}");
        let broken = calling(json!({"name": "f", "arguments": &values[..values.len() - 2]}));
        assert!(parse(broken).is_err(), "malformed JSON is counted, too");
    }

    #[test]
    fn functions_and_their_results_become_tool_calls() {
        let messages = json!([
            {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "4"},
        ]);
        let id = "call_messages[0]";
        let call =
            json!({"id": id, "type": "function", "function": {"name": "f", "arguments": {}}});
        let expected = json!([
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "f", "content": "4", "tool_call_id": id},
        ]);
        assert_eq!(parse(messages), Ok(expected));
    }
}
