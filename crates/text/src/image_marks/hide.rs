//! Replaces the names of images' tokens in messages, tools and template arguments by nonces.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::ImageMarks;
use crate::chat::ChatPrompt;
use souffleur_base::error::RequestError;

/// The parts of a prompt in which names are hidden, if any of them has one.
pub(super) struct Hidden {
    messages: Option<Value>,
    tools: Option<Box<RawValue>>,
    template_kwargs: Option<Map<String, Value>>,
}

impl Hidden {
    pub(super) fn is_needed(marks: &ImageMarks, value: &Value) -> bool {
        match value {
            Value::String(text) => marks.is_in(text),
            Value::Array(items) => items.iter().any(|item| Self::is_needed(marks, item)),
            Value::Object(fields) => Self::is_needed_in(marks, fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn is_needed_in(marks: &ImageMarks, fields: &Map<String, Value>) -> bool {
        let mut fields = fields.iter();
        fields.any(|(name, value)| marks.is_in(name) || Self::is_needed(marks, value))
    }

    pub(super) fn of(marks: &ImageMarks, prompt: &ChatPrompt<'_>) -> Result<Self, RequestError> {
        let messages = Some(prompt.messages).filter(|it| Self::is_needed(marks, it));
        let kwargs = prompt.template_kwargs;
        let kwargs = kwargs.filter(|it| Self::is_needed_in(marks, it));
        let tools = prompt.tools.map(RawValue::get);
        let tools = tools.and_then(|json| marks.hidden_in_json(json));
        let read = |json: String| {
            RawValue::from_string(json).map_err(|error| {
                RequestError::Invalid(format!("tools are not valid JSON: {error}"))
            })
        };
        Ok(Self {
            messages: messages.map(|messages| marks.hidden(messages)),
            tools: tools.map(read).transpose()?,
            template_kwargs: kwargs.map(|kwargs| marks.hidden_fields(kwargs)),
        })
    }

    /// The prompt with these parts in place of its own.
    pub(super) fn prompt<'a>(&'a self, prompt: &ChatPrompt<'a>) -> ChatPrompt<'a> {
        ChatPrompt {
            messages: self.messages.as_ref().unwrap_or(prompt.messages),
            tools: self.tools.as_deref().or(prompt.tools),
            template_kwargs: self.template_kwargs.as_ref().or(prompt.template_kwargs),
            ..*prompt
        }
    }
}

impl ImageMarks {
    fn is_in(&self, text: &str) -> bool {
        self.in_messages.is_match(text) || self.ends_within_a_name(text)
    }

    /// Whether the text and the one after it could form a name.
    fn ends_within_a_name(&self, text: &str) -> bool {
        let tail = &text.as_bytes()[text.len().saturating_sub(self.longest_name)..];
        self.names.iter().map(String::as_bytes).any(|name| {
            let may_begin = tail.contains(&name[0]);
            may_begin && (1..name.len()).any(|n| tail.ends_with(&name[..n]))
        })
    }

    fn hidden_text(&self, text: &str) -> String {
        let found = self
            .in_messages
            .try_replace_all(text, &self.nonces[..self.names.len()]);
        let mut hidden = found.unwrap_or_else(|_| text.to_owned());
        if self.ends_within_a_name(text) {
            hidden.push_str(&self.nonces[self.names.len()]);
        }
        hidden
    }

    fn hidden(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.hidden_text(text)),
            Value::Array(items) => items.iter().map(|item| self.hidden(item)).collect(),
            Value::Object(fields) => Value::Object(self.hidden_fields(fields)),
            other => other.clone(),
        }
    }

    fn hidden_fields(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        let hidden =
            |(name, value): (&String, &Value)| (self.hidden_text(name), self.hidden(value));
        fields.iter().map(hidden).collect()
    }

    /// JSON in which names are hidden; `None` if it has none. The text is not parsed, because numbers would lose digits.
    fn hidden_in_json(&self, json: &str) -> Option<String> {
        let plain = without_escapes(json);
        let is_in = self.in_messages.is_match(&*plain);
        is_in.then(|| {
            let nonces = &self.nonces[..self.names.len()];
            let hidden = self.in_messages.try_replace_all(&plain, nonces);
            hidden.unwrap_or_else(|_| plain.into_owned())
        })
    }
}

/// JSON in which escapes of ASCII letters and signs are the letters: `\u003c` is another way to write `<`.
fn without_escapes(json: &str) -> Cow<'_, str> {
    if !json.contains("\\u00") {
        return Cow::Borrowed(json);
    }
    let (mut plain, mut rest) = (String::with_capacity(json.len()), json);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        let code = escape.strip_prefix("\\u00").and_then(|code| code.get(..2));
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        let letter = code.filter(|code| code.is_ascii_graphic() && !matches!(code, b'"' | b'\\'));
        let length = match letter {
            Some(letter) => {
                plain.push(char::from(letter));
                "\\u0000".len()
            }
            // The character after a backslash is ASCII.
            None => {
                let length = escape.len().min(2);
                plain.push_str(escape.get(..length).unwrap_or_default());
                length
            }
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_letters_and_signs_are_replaced() {
        for (json, expected) in [
            (r#"["<a>"]"#, r#"["<a>"]"#),
            (r#"["\u003ca\u007C\u003E"]"#, r#"["<a|>"]"#),
            (r#"["\\u003c", "\n\u003c"]"#, r#"["\\u003c", "\n<"]"#),
            (
                r#"["\u0022\u005c\u000a\u00e9\ud83d\ude00"]"#,
                r#"["\u0022\u005c\u000a\u00e9\ud83d\ude00"]"#,
            ),
        ] {
            assert_eq!(without_escapes(json), expected);
            let value = |json: &str| serde_json::from_str::<Value>(json).expect("JSON");
            assert_eq!(value(json), value(expected));
        }
    }
}
