//! Converts the tool calls of a conversation to the form that a template expects.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::arguments::object_of;
use crate::jinja::{Fault, Value as TemplateValue};
use crate::refusal::invalid;
use crate::written::CallWriter;
use souffleur_base::error::RequestError;
use souffleur_base::field::count_values;

/// Maximum number of JSON values in the string arguments of a conversation.
const MAX_VALUES: usize = 1 << 16;
/// Length of the tool-call ids that Mistral's templates accept.
const SHORT_ID_CHARS: usize = 9;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallIds {
    AsGiven,
    /// Exactly nine letters or digits.
    Short,
}

impl CallIds {
    /// Detects a check of the id's length, as in Mistral's templates.
    pub(super) fn of(template: &str) -> Self {
        let source: String = template.split_whitespace().collect();
        if source.contains("|length!=9") {
            Self::Short
        } else {
            Self::AsGiven
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentForm {
    /// The template prints an object, with `tojson` or key by key.
    Object,
    /// The template concatenates the arguments as a string.
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmptyContent {
    Text,
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rendering {
    ByTemplate,
    /// The template wrote no call when probed.
    Nowhere,
    /// The engine appends calls to the content of a message.
    InContent(CallWriter),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallForm {
    ids: CallIds,
    /// The template loops over arguments, so a string would be an error.
    loops_over_arguments: bool,
    arguments: ArgumentForm,
    empty_content: EmptyContent,
    rendering: Rendering,
}

impl CallForm {
    pub(super) fn of(template: &str) -> Self {
        let source: String = template.split_whitespace().collect();
        let loops = ["arguments|items", "arguments.items()", "arguments|dictsort"];
        Self {
            ids: CallIds::of(template),
            loops_over_arguments: loops.iter().any(|loops| source.contains(loops)),
            arguments: ArgumentForm::Object,
            empty_content: EmptyContent::Text,
            rendering: Rendering::Nowhere,
        }
    }

    /// Puts calls into the content, unless the template writes them.
    pub(super) fn in_content(self, writer: CallWriter) -> Self {
        Self {
            rendering: match self.rendering {
                Rendering::Nowhere | Rendering::InContent(_) => Rendering::InContent(writer),
                Rendering::ByTemplate => Rendering::ByTemplate,
            },
            ..self
        }
    }

    /// Passes arguments to the template unchanged.
    pub(super) fn as_given(self) -> Self {
        Self {
            arguments: ArgumentForm::Text,
            ..self
        }
    }

    /// Parses arguments from a string to an object for the template; `None` if they are passed unchanged.
    ///
    /// OpenAI sends the arguments of a call as JSON inside a string; templates print them with `tojson`.
    pub(super) fn arguments_of(
        self,
        arguments: &Value,
    ) -> Result<Option<TemplateValue>, RequestError> {
        let Value::String(text) = arguments else {
            return Ok(None);
        };
        if self.arguments == ArgumentForm::Text {
            return Ok(None);
        }
        let object = object_of(text);
        // Invalid arguments stay a string if the template can print one, so that the conversation can continue.
        let nothing = || TemplateValue::dict(Vec::new()).ok();
        Ok(object.or_else(|| self.loops_over_arguments.then(nothing).flatten()))
    }

    /// Sets the results of a probe.
    pub(super) fn with(self, arguments: ArgumentForm, empty_content: EmptyContent) -> Self {
        Self {
            arguments,
            empty_content,
            rendering: Rendering::ByTemplate,
            ..self
        }
    }
}

pub(super) struct Calls {
    form: CallForm,
    /// Number of JSON values in the arguments so far.
    n_values: usize,
    n_calls: usize,
}

impl Calls {
    pub(super) fn new(form: CallForm) -> Self {
        Self {
            form,
            n_values: 0,
            n_calls: 0,
        }
    }

    /// Converts the calls of a message, or the id of the call that the message answers, to the template's form.
    pub(super) fn normalize(
        &mut self,
        message: &mut Map<String, Value>,
    ) -> Result<(), RequestError> {
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
            for call in calls.iter_mut() {
                match self.form.arguments {
                    ArgumentForm::Object => self.count_argument_values(call)?,
                    ArgumentForm::Text => write_arguments(call)?,
                }
                self.shorten_id(call);
            }
            if let Rendering::InContent(writer) = self.form.rendering
                && !calls.is_empty()
            {
                let calls = std::mem::take(calls);
                write_into_content(message, &calls, writer)?;
            } else if !calls.is_empty()
                && self.form.empty_content == EmptyContent::Null
                && message.get("content").is_some_and(|content| content == "")
            {
                message.insert("content".to_owned(), Value::Null);
            }
        }
        if self.form.ids == CallIds::Short
            && let Some(Value::String(id)) = message.get_mut("tool_call_id")
        {
            *id = short(id);
        }
        Ok(())
    }

    /// Counts the JSON values in arguments that are strings, before they are parsed.
    fn count_argument_values(&mut self, call: &Value) -> Result<(), RequestError> {
        let arguments = call.pointer("/function/arguments");
        let Some(text) = arguments.and_then(Value::as_str) else {
            return Ok(());
        };
        self.n_values += count_values(text.as_bytes());
        if self.n_values <= MAX_VALUES {
            Ok(())
        } else {
            invalid(format!(
                "the arguments of tool calls hold more than {MAX_VALUES} JSON values: send fewer"
            ))
        }
    }

    fn shorten_id(&mut self, call: &mut Value) {
        self.n_calls += 1;
        let Some(call) = call.as_object_mut() else {
            return;
        };
        if self.form.ids == CallIds::Short {
            let id = match call.get("id").and_then(Value::as_str) {
                Some(id) => short(id),
                None => short(&self.n_calls.to_string()),
            };
            call.insert("id".to_owned(), Value::from(id));
        }
    }
}

fn write_into_content(
    message: &mut Map<String, Value>,
    calls: &[Value],
    writer: CallWriter,
) -> Result<(), RequestError> {
    let mut written = String::new();
    writer.add(&mut written, calls).map_err(unprintable)?;
    match message.get_mut("content") {
        Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": written})),
        Some(Value::String(text)) => text.push_str(&written),
        _ => {
            message.insert("content".to_owned(), Value::from(written));
        }
    }
    message.remove("tool_calls");
    Ok(())
}

/// Converts arguments to a string, unless they are one already.
fn write_arguments(call: &mut Value) -> Result<(), RequestError> {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && !arguments.is_string()
    {
        let value = TemplateValue::from_json(arguments).map_err(unprintable)?;
        *arguments = Value::from(value.to_json().map_err(unprintable)?);
    }
    Ok(())
}

fn unprintable(fault: Fault) -> RequestError {
    RequestError::Invalid(format!(
        "the arguments of a tool call cannot be rendered: {fault}"
    ))
}

/// Derives a short id from `id`, always the same one.
fn short(id: &str) -> String {
    if id.len() == SHORT_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let hash = Sha256::digest(id);
    let letter = |byte: &u8| char::from(ALPHABET[*byte as usize % ALPHABET.len()]);
    hash.iter().take(SHORT_ID_CHARS).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ids_are_kept_and_longer_ids_are_shortened() {
        assert_eq!(short("AbCdEf123"), "AbCdEf123");
        let id = short("call_0123456789abcdef01234567");
        assert_eq!(id, short("call_0123456789abcdef01234567"));
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_ne!(id, short("call_0123456789abcdef01234568"));
    }
}
