//! Replaces the names of images' tokens in messages, tools and template arguments by nonces.

use std::borrow::Cow;

use rustc_hash::FxHashSet;
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
    /// Whether a text has a name, or begins one that another text may continue. A text that only ends with `<` needs no
    /// care.
    pub(super) fn is_needed(marks: &ImageMarks, prompt: &ChatPrompt<'_>) -> bool {
        let mut ends = FxHashSet::default();
        let mut has_name = |text: &str| {
            ends.extend(marks.ends_within(text));
            marks.in_messages.is_match(text)
        };
        if any_text(prompt, &mut has_name) {
            return true;
        }
        !ends.is_empty() && any_text(prompt, &mut |text: &str| marks.continues(text, &ends))
    }

    pub(super) fn of(marks: &ImageMarks, prompt: &ChatPrompt<'_>) -> Result<Self, RequestError> {
        let messages = Some(prompt.messages).filter(|it| marks.are_in_value(it));
        let kwargs = prompt.template_kwargs;
        let kwargs = kwargs.filter(|it| marks.are_in_fields(it));
        let tools = prompt.tools.map(RawValue::get);
        let tools = tools.filter(|json| marks.are_in_json(json));
        let read = |json: &str| {
            RawValue::from_string(marks.hidden_in_json(json)).map_err(|error| {
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
    fn are_in_value(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.is_in(text),
            Value::Array(items) => items.iter().any(|item| self.are_in_value(item)),
            Value::Object(fields) => self.are_in_fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn are_in_fields(&self, fields: &Map<String, Value>) -> bool {
        let mut fields = fields.iter();
        fields.any(|(name, value)| {
            self.is_in(name)
                || self.are_in_value(value)
                || json_in(name, value).is_some_and(|json| self.are_in_json(json))
        })
    }

    fn are_in_json(&self, json: &str) -> bool {
        let plain = without_escapes(json);
        self.in_messages.is_match(&*plain)
            || between_quotes(&plain).any(|(text, is_string)| is_string && self.is_in(text))
    }

    fn is_in(&self, text: &str) -> bool {
        self.in_messages.is_match(text) || self.ends_within_a_name(text)
    }

    /// Whether the text and the one after it could form a name.
    fn ends_within_a_name(&self, text: &str) -> bool {
        self.ends_within(text).next().is_some()
    }

    /// The names with which the text could end, and how many of their bytes it has. Templates may remove the spaces
    /// between texts.
    fn ends_within(&self, text: &str) -> impl Iterator<Item = (usize, usize)> {
        let text = text.trim_end().as_bytes();
        let tail = &text[text.len().saturating_sub(self.longest_name)..];
        let names = self.names.iter().map(String::as_bytes).enumerate();
        let begun = names.filter(move |(_, name)| tail.contains(&name[0]));
        begun.flat_map(move |(index, name)| {
            let has = move |n: &usize| tail.ends_with(&name[..*n]);
            (1..name.len()).filter(has).map(move |n| (index, n))
        })
    }

    /// Whether a text continues one of the names, of which others have the first bytes.
    fn continues(&self, text: &str, ends: &FxHashSet<(usize, usize)>) -> bool {
        let text = text.trim_start();
        let continues = |(index, n): &(usize, usize)| {
            let rest = &self.names[*index].as_bytes()[*n..];
            let text = text.as_bytes();
            text.starts_with(rest) || rest.starts_with(text)
        };
        !text.is_empty() && ends.iter().any(continues)
    }

    fn hidden_text(&self, text: &str) -> String {
        let mut hidden = self.without_names(text);
        if self.ends_within_a_name(text) {
            let end = hidden.trim_end().len();
            hidden.insert_str(end, &self.nonces[self.names.len()]);
        }
        hidden
    }

    fn without_names(&self, text: &str) -> String {
        let nonces = &self.nonces[..self.names.len()];
        let replaced = self.in_messages.try_replace_all(text, nonces);
        replaced.unwrap_or_else(|_| text.to_owned())
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
        let hidden = |(name, value): (&String, &Value)| {
            let json = json_in(name, value).filter(|json| self.are_in_json(json));
            let value = match json {
                Some(json) => Value::String(self.hidden_in_json(json)),
                None => self.hidden(value),
            };
            (self.hidden_text(name), value)
        };
        fields.iter().map(hidden).collect()
    }

    /// JSON in which names are hidden. The text is not parsed, because numbers would lose digits.
    fn hidden_in_json(&self, json: &str) -> String {
        let plain = without_escapes(json);
        let texts = between_quotes(&plain).map(|(text, is_string)| {
            if is_string {
                self.hidden_text(text)
            } else {
                // Nothing may be added between values. Arguments of calls may be no JSON.
                self.without_names(text)
            }
        });
        texts.collect::<Vec<_>>().join("\"")
    }
}

/// Whether any text of a prompt satisfies `is`: names of fields are texts, too.
fn any_text(prompt: &ChatPrompt<'_>, is: &mut dyn FnMut(&str) -> bool) -> bool {
    any_in(prompt.messages, is)
        || prompt
            .template_kwargs
            .is_some_and(|it| any_in_fields(it, is))
        || prompt.tools.is_some_and(|it| any_in_json(it.get(), is))
}

fn any_in(value: &Value, is: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is(text),
        Value::Array(items) => items.iter().any(|item| any_in(item, is)),
        Value::Object(fields) => any_in_fields(fields, is),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn any_in_fields(fields: &Map<String, Value>, is: &mut dyn FnMut(&str) -> bool) -> bool {
    let mut fields = fields.iter();
    fields.any(|(name, value)| {
        let json = json_in(name, value);
        is(name) || any_in(value, is) || json.is_some_and(|json| any_in_json(json, is))
    })
}

fn any_in_json(json: &str, is: &mut dyn FnMut(&str) -> bool) -> bool {
    let plain = without_escapes(json);
    between_quotes(&plain).any(|(text, _)| is(text))
}

/// The JSON in a field: clients send the arguments of calls as texts, which are parsed for templates.
fn json_in<'a>(name: &str, value: &'a Value) -> Option<&'a str> {
    let is_json = name == "arguments";
    is_json.then(|| value.as_str()).flatten()
}

/// The texts before, between and after the quotes of JSON, and whether they are strings.
fn between_quotes(json: &str) -> impl Iterator<Item = (&str, bool)> {
    let (mut rest, mut is_string) = (Some(json), true);
    std::iter::from_fn(move || {
        let text = rest?;
        is_string = !is_string;
        let mut is_escaped = false;
        let quote = text.bytes().position(|byte| {
            let is_quote = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_quote
        });
        rest = quote.map(|at| &text[at + 1..]);
        Some((&text[..quote.unwrap_or(text.len())], is_string))
    })
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
            None => {
                let length = escape.chars().take(2).map(char::len_utf8).sum::<usize>();
                plain.push_str(&escape[..length]);
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
        // Arguments of calls may be no JSON.
        for text in ["\\é\\", "\\u00", "\\u00é", "\\\\u003c"] {
            assert_eq!(
                without_escapes(&format!("{text}\\u000a")),
                format!("{text}\\u000a")
            );
        }
    }

    #[test]
    fn texts_between_quotes_are_strings_in_turns() {
        let found = |json| between_quotes(json).collect::<Vec<_>>();
        let json = r#"{"a\"b\\": ["", 5]}"#;
        let expected = [
            ("{", false),
            (r#"a\"b\\"#, true),
            (": [", false),
            ("", true),
            (", 5]}", false),
        ];
        assert_eq!(found(json), expected);
        assert_eq!(found(""), [("", false)]);
        assert_eq!(found(r#"a"b"#), [("a", false), ("b", true)]);
    }
}
