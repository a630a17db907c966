//! Implements Jinja's filters for HTML and URLs.

use super::super::args::Args;
use super::super::characters::is_blank;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::value::Value;

pub(in super::super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(character),
        }
    }
    out
}

impl Interpreter<'_> {
    pub(super) fn html_filter(&self, name: &str, value: Value, args: Args) -> Result<Value> {
        match name {
            "safe" => {
                args.expect_none(name)?;
                Ok(Value::safe(self.str(&value)?))
            }
            "e" | "escape" | "forceescape" => {
                args.expect_none(name)?;
                if value.is_safe() && name != "forceescape" {
                    return Ok(value);
                }
                let text = self.str(&value)?;
                self.check_allocation(text.len(), 5)?;
                Ok(Value::safe(escape(&text)))
            }
            "striptags" => {
                args.expect_none(name)?;
                Ok(Value::text(strip_tags(&self.str(&value)?)))
            }
            "urlencode" => {
                args.expect_none(name)?;
                self.urlencode(&value)
            }
            _ => {
                let [space] = args.bind(name, ["autospace"], 0)?;
                self.xmlattr(&value, space.is_none_or(|space| self.truth(&space)))
            }
        }
    }

    fn urlencode(&self, value: &Value) -> Result<Value> {
        if value.as_str().is_some() || !value.is_iterable() {
            return Ok(Value::text(quote(&self.str(value)?, false)));
        }
        let pairs = match value {
            Value::Dict(dict) => {
                let view = super::super::value::View::Items;
                self.items(&Value::View(dict.clone(), view))?
            }
            other => self.items(other)?,
        };
        let mut parts = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let items = self.items(&pair)?;
            let [key, value] = items.as_slice() else {
                return Fault::other("urlencode takes pairs");
            };
            let (key, value) = (self.str(key)?, self.str(value)?);
            parts.push(format!("{}={}", quote(&key, true), quote(&value, true)));
        }
        Ok(Value::text(parts.join("&")))
    }

    fn xmlattr(&self, value: &Value, has_space: bool) -> Result<Value> {
        let Value::Dict(dict) = value else {
            return Fault::other("xmlattr takes a mapping");
        };
        let mut out = String::new();
        for (key, value) in dict.entries() {
            if matches!(value, Value::None | Value::Undefined(_)) {
                continue;
            }
            let name = self.str(key)?;
            if name.contains([' ', '\t', '\n', '\r', '\x0b', '\x0c', '/', '>', '=']) {
                let name = self.repr(key)?;
                return Fault::other(format!("Invalid character in attribute name: {name}"));
            }
            if has_space || !out.is_empty() {
                out.push(' ');
            }
            let escaped = |value: &Value| -> Result<String> {
                let text = self.str(value)?;
                Ok(if value.is_safe() { text } else { escape(&text) })
            };
            out.push_str(&format!("{}=\"{}\"", escaped(key)?, escaped(value)?));
            self.check_memory(out.len())?;
        }
        Ok(Value::text(out))
    }
}

/// Percent-encodes all bytes except ASCII letters, digits, `_.-~` and, outside of queries, `/`.
fn quote(text: &str, for_query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if !for_query => out.push('/'),
            b' ' if for_query => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `Markup.striptags`: removes comments and tags, collapses white space and decodes entities.
fn strip_tags(text: &str) -> String {
    let mut text = text.to_owned();
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut kept = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(start) = rest.find(open) {
            let Some(end) = rest[start..].find(close) else {
                break;
            };
            kept.push_str(&rest[..start]);
            rest = &rest[start + end + close.len()..];
        }
        kept.push_str(rest);
        text = kept;
    }
    let words: Vec<&str> = text
        .split(is_blank)
        .filter(|word| !word.is_empty())
        .collect();
    unescape(&words.join(" "))
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let entity = rest
            .find(';')
            .and_then(|end| Some((entity(&rest[1..end])?, end)));
        match entity {
            Some((character, end)) => {
                out.push(character);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out + rest
}

fn entity(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => number.parse(),
        };
        return char::from_u32(code.ok()?);
    }
    Some(match name {
        "amp" | "AMP" => '&',
        "lt" | "LT" => '<',
        "gt" | "GT" => '>',
        "quot" | "QUOT" => '"',
        "apos" => '\'',
        "nbsp" => '\u{a0}',
        "copy" => '©',
        "reg" => '®',
        "hellip" => '…',
        "mdash" => '—',
        "ndash" => '–',
        "lsquo" => '‘',
        "rsquo" => '’',
        "ldquo" => '“',
        "rdquo" => '”',
        "times" => '×',
        "euro" => '€',
        _ => return None,
    })
}
