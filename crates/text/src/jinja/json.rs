//! Reads and writes JSON as Python does. Integers keep all digits.

use std::fmt::Write as _;

use num_bigint::BigInt;
use serde_json::Value as Json;

use super::error::{Fault, Result};
use super::repr::float;
use super::value::Value;

impl Value {
    /// Converts a JSON value to a template's value. Fails if it is nested too deeply.
    pub(crate) fn from_json(json: &Json) -> Result<Self> {
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(small), _) => Self::Int(small),
                (None, Some(large)) => Self::big(large.into()),
                (None, None) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::text(text.as_str()),
            Json::Array(items) => {
                Self::list(items.iter().map(Self::from_json).collect::<Result<_>>()?)?
            }
            Json::Object(fields) => {
                let entry = |(key, value): (&String, &Json)| {
                    Ok((Self::text(key.as_str()), Self::from_json(value)?))
                };
                Self::dict(fields.iter().map(entry).collect::<Result<_>>()?)?
            }
        })
    }

    /// Parses JSON as Python's `json.loads` does. `None` for invalid JSON, deep nesting or an overlong integer.
    pub(crate) fn parse_json(text: &str) -> Option<Self> {
        let mut reader = Reader {
            bytes: text.as_bytes(),
            text,
            at: 0,
        };
        let value = reader.value(0)?;
        reader.blanks();
        (reader.at == text.len()).then_some(value)
    }

    /// Writes the value as `json.dumps` does without ASCII escapes. Fails for values that JSON lacks.
    pub(crate) fn to_json(&self) -> Result<String> {
        Style::default().dump(self)
    }
}

/// Maximum nesting depth of lists and objects, below that of values because other values will contain them.
const MAX_DEPTH: usize = super::value::MAX_DEPTH as usize - 8;

struct Reader<'a> {
    bytes: &'a [u8],
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn blanks(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.blanks();
        (self.bytes.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.blanks();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.bytes.get(self.at)? {
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => self.string().map(Value::text),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'n' => self.word("null", Value::None),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Option<Value> {
        self.text[self.at..].starts_with(word).then(|| {
            self.at += word.len();
            value
        })
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.take(b'{')?;
        let mut entries = Vec::new();
        if self.take(b'}').is_some() {
            return Value::dict(entries).ok();
        }
        loop {
            self.blanks();
            let key = self.string()?;
            self.take(b':')?;
            entries.push((Value::text(key), self.value(depth + 1)?));
            if self.take(b',').is_none() {
                self.take(b'}')?;
                return Value::dict(entries).ok();
            }
        }
    }

    fn list(&mut self, depth: usize) -> Option<Value> {
        self.take(b'[')?;
        let mut items = Vec::new();
        if self.take(b']').is_some() {
            return Value::list(items).ok();
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(b',').is_none() {
                self.take(b']')?;
                return Value::list(items).ok();
            }
        }
    }

    /// Finds the end of a string; serde_json decodes its escapes.
    fn string(&mut self) -> Option<String> {
        let start = self.at;
        if self.bytes.get(start) != Some(&b'"') {
            return None;
        }
        let mut end = start + 1;
        loop {
            match self.bytes.get(end)? {
                b'\\' => end += 2,
                b'"' => break,
                _ => end += 1,
            }
        }
        self.at = end + 1;
        serde_json::from_str(self.text.get(start..self.at)?).ok()
    }

    fn number(&mut self) -> Option<Value> {
        let start = self.at;
        let is_of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        while self.bytes.get(self.at).is_some_and(is_of_number) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        // serde_json only checks the syntax; the value is parsed as in Python.
        serde_json::from_str::<&serde_json::value::RawValue>(text).ok()?;
        if text.contains(['.', 'e', 'E']) {
            return text.parse().ok().map(Value::Float);
        }
        match text.parse() {
            Ok(small) => Some(Value::Int(small)),
            Err(_) if text.len() > MAX_DIGITS => None,
            Err(_) => BigInt::parse_bytes(text.as_bytes(), 10).map(Value::big),
        }
    }
}

const MAX_DIGITS: usize = 4300;

#[derive(Clone, Debug)]
pub(super) struct Style {
    /// The indentation per level; `None` writes one line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) is_ascii: bool,
    pub(super) sorts_keys: bool,
    pub(super) limit: usize,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            is_ascii: false,
            sorts_keys: false,
            limit: usize::MAX,
        }
    }
}

impl Style {
    pub(super) fn dump(&self, value: &Value) -> Result<String> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, level: usize) -> Result<()> {
        if out.len() > self.limit {
            return Err(Fault::Memory);
        }
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(number) => put(out, format_args!("{number}")),
            Value::Big(number) => put(out, format_args!("{number}")),
            Value::Float(number) => out.push_str(&json_float(*number)),
            Value::Text(text) => self.text(out, text.as_str()),
            Value::List(items) | Value::Tuple(items) => {
                self.enclosed(out, "[]", items.len(), level, |out, index| {
                    self.write(out, &items[index], level + 1)
                })?;
            }
            Value::Dict(dict) => {
                let mut entries = Vec::with_capacity(dict.entries().len());
                for (key, value) in dict.entries() {
                    entries.push((key, value));
                }
                if self.sorts_keys {
                    sort(&mut entries)?;
                }
                self.enclosed(out, "{}", entries.len(), level, |out, index| {
                    let (key, value) = entries[index];
                    self.text(out, &key_text(key)?);
                    out.push_str(&self.key_separator);
                    self.write(out, value, level + 1)
                })?;
            }
            other => {
                return Fault::other(format!(
                    "Object of type {} is not JSON serializable",
                    other.type_name()
                ));
            }
        }
        Ok(())
    }

    fn enclosed(
        &self,
        out: &mut String,
        braces: &str,
        len: usize,
        level: usize,
        mut item: impl FnMut(&mut String, usize) -> Result<()>,
    ) -> Result<()> {
        let (open, close) = braces.split_at(1);
        out.push_str(open);
        for index in 0..len {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.line(out, level + 1)?;
            item(out, index)?;
        }
        if len > 0 {
            self.line(out, level)?;
        }
        out.push_str(close);
        Ok(())
    }

    fn line(&self, out: &mut String, level: usize) -> Result<()> {
        if let Some(indent) = &self.indent {
            if out.len() + indent.len() * level > self.limit {
                return Err(Fault::Memory);
            }
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
        Ok(())
    }

    fn text(&self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\x1f' => put(out, format_args!("\\u{:04x}", u32::from(character))),
                '\x7f' if self.is_ascii => out.push(character),
                _ if self.is_ascii && !character.is_ascii() => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        put(out, format_args!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

fn json_float(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => float(number),
    }
}

fn key_text(key: &Value) -> Result<String> {
    Ok(match key {
        Value::Text(text) => text.as_str().to_owned(),
        Value::None => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Big(number) => number.to_string(),
        Value::Float(number) => json_float(*number),
        other => {
            return Fault::other(format!(
                "keys must be str, int, float, bool or None, not {}",
                other.type_name()
            ));
        }
    })
}

fn sort(entries: &mut [(&Value, &Value)]) -> Result<()> {
    let mut fault = None;
    entries.sort_by(|(a, _), (b, _)| {
        let order = super::compare::order(a, b, "<");
        order
            .unwrap_or_else(|error| {
                fault = Some(error);
                None
            })
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    fault.map_or(Ok(()), Err)
}
