//! Implements Python's string searches, such as `find`, `count` and `startswith`.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::eval::slice_indices;
use super::super::value::Value;

/// A part of a text, and its start in characters.
struct Window<'a> {
    text: &'a str,
    start: usize,
}

impl Interpreter<'_> {
    pub(super) fn search(&self, text: &str, name: &str, args: Args) -> Result<Value> {
        let [wanted, start, stop] = args.by_position(name, 1)?;
        let wanted = wanted.unwrap_or(Value::None);
        let window = self.window(text, start, stop)?;
        if matches!(name, "startswith" | "endswith") {
            return self.has_affix(window.as_ref(), name, &wanted);
        }
        let wanted = self.text_of(&wanted)?;
        let Some(Window { text, start }) = window else {
            return match name {
                "index" | "rindex" => Fault::other("substring not found"),
                "count" => Ok(Value::Int(0)),
                _ => Ok(Value::Int(-1)),
            };
        };
        if name == "count" {
            return Ok(text.matches(wanted).count().into());
        }
        let found = match name {
            "find" | "index" => text.find(wanted),
            "rfind" | "rindex" => text.rfind(wanted),
            _ => return Fault::other(format!("'str object' has no attribute '{name}'")),
        };
        match found {
            Some(at) => Ok((start + text[..at].chars().count()).into()),
            None if name.ends_with("index") => Fault::other("substring not found"),
            None => Ok(Value::Int(-1)),
        }
    }

    /// The text between two character indices; `None` if `start` is after the end of the text.
    fn window<'a>(
        &self,
        text: &'a str,
        start: Option<Value>,
        stop: Option<Value>,
    ) -> Result<Option<Window<'a>>> {
        if start.is_none() && stop.is_none() {
            return Ok(Some(Window { text, start: 0 }));
        }
        let len = text.chars().count();
        let beginning = start.clone().unwrap_or(Value::None);
        let is_beyond = |number: &Value| matches!(number, Value::Int(start) if *start > len as i64);
        if is_beyond(&beginning) {
            return Ok(None);
        }
        let parts = [beginning, stop.unwrap_or(Value::None), Value::None];
        let (start, _, count) = slice_indices(&parts, len)?;
        let start = start as usize;
        let from = text
            .char_indices()
            .nth(start)
            .map_or(text.len(), |(at, _)| at);
        let rest = &text[from..];
        let to = rest
            .char_indices()
            .nth(count)
            .map_or(rest.len(), |(at, _)| at);
        Ok(Some(Window {
            text: &rest[..to],
            start,
        }))
    }

    fn has_affix(&self, window: Option<&Window<'_>>, name: &str, wanted: &Value) -> Result<Value> {
        let affixes = match wanted {
            Value::Tuple(items) => items.to_vec(),
            Value::Text(_) => vec![wanted.clone()],
            Value::Undefined(message) => return Fault::other(message.to_string()),
            other => {
                return Fault::other(format!(
                    "{name} first arg must be str or a tuple of str, not {}",
                    other.type_name()
                ));
            }
        };
        for affix in &affixes {
            let affix = self.text_of(affix)?;
            let is_there = window.is_some_and(|window| match name {
                "startswith" => window.text.starts_with(affix),
                _ => window.text.ends_with(affix),
            });
            if is_there {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }
}
