//! The messages of a chat, brought into the shape that templates expect.

use serde_json::{Map, Value};

use crate::error::RequestError;
use crate::field::Tree;

/// What a chat template is rendered with.
#[derive(Clone, Copy, Debug)]
pub struct ChatPrompt<'a> {
    /// OpenAI's messages: a list of objects with `role` and `content` (text, or a list of text parts).
    pub messages: &'a Value,
    /// OpenAI's tools, if any.
    pub tools: Option<&'a Value>,
    /// Ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The request's `chat_template_kwargs`: variables for the template, such as `enable_thinking`.
    pub template_kwargs: Option<&'a Map<String, Value>>,
}

impl<'a> ChatPrompt<'a> {
    /// A prompt for the assistant's answer to these messages, without tools.
    pub fn new(messages: &'a Value) -> Self {
        Self {
            messages,
            tools: None,
            add_generation_prompt: true,
            template_kwargs: None,
        }
    }
}

/// How a template reads `content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// As text: lists of parts are joined for it.
    Text,
    /// It loops over parts itself.
    Parts,
}

impl ContentFormat {
    /// Looks for a loop over something called `content`.
    pub(super) fn of(template: &str) -> Self {
        let loops_over_content = template.split("{%").skip(1).any(|rest| {
            let tag = rest.split("%}").next().unwrap_or_default();
            let tag = tag.trim_matches(['-', '+', ' ', '\t', '\n']);
            let Some((_, iterated)) = tag
                .strip_prefix("for ")
                .and_then(|tag| tag.split_once(" in "))
            else {
                return false;
            };
            let iterated = iterated.split([' ', '|']).next().unwrap_or_default();
            let iterated = iterated.trim_end_matches(['\'', '"', ']']);
            iterated.ends_with("content")
        });
        match loops_over_content {
            true => Self::Parts,
            false => Self::Text,
        }
    }
}

/// Checks the messages and returns them as the template expects them: `content` always there, tool-call arguments as
/// objects.
pub(super) fn normalize(
    messages: &Value,
    format: ContentFormat,
) -> Result<Vec<Value>, RequestError> {
    let Some(messages) = messages.as_array().filter(|messages| !messages.is_empty()) else {
        return invalid(
            "messages is not a list with at least one message: send \
             [{\"role\": \"user\", \"content\": ...}]"
                .to_owned(),
        );
    };
    let numbered = messages.iter().enumerate();
    numbered
        .map(|(index, message)| normalize_message(index, message, format))
        .collect()
}

fn normalize_message(
    index: usize,
    message: &Value,
    format: ContentFormat,
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
            let texts = texts_of(index, parts)?;
            match format {
                ContentFormat::Text => Value::from(texts.join(" ")),
                ContentFormat::Parts => Value::from(parts.clone()),
            }
        }
        Some(_) => {
            return invalid(format!(
                "messages[{index}].content is neither a string nor a list of parts: send text"
            ));
        }
    };
    fields.insert("content".to_owned(), content);
    if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
        calls.iter_mut().for_each(parse_arguments);
    }
    Ok(Value::Object(fields))
}

fn texts_of(index: usize, parts: &[Value]) -> Result<Vec<&str>, RequestError> {
    let numbered = parts.iter().enumerate();
    numbered
        .map(|(part_index, part)| match (&part["type"], &part["text"]) {
            (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text.as_str()),
            (Value::String(kind), _) if kind != "text" => invalid(format!(
                "messages[{index}].content[{part_index}] has type {kind:?}, supported is \"text\": send text parts only"
            )),
            _ => invalid(format!(
                "messages[{index}].content[{part_index}] is no text part: send {{\"type\": \"text\", \"text\": ...}}"
            )),
        })
        .collect()
}

/// OpenAI sends the arguments of a call as JSON inside a string; templates print them with `tojson`.
fn parse_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else {
        return;
    };
    let Some(text) = arguments.as_str() else {
        return;
    };
    if let Ok(Tree(object @ Value::Object(_))) = serde_json::from_str(text) {
        *arguments = object;
    }
}

pub(super) fn invalid<T>(text: String) -> Result<T, RequestError> {
    Err(RequestError::Invalid(text))
}
