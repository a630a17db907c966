//! Formats values as Python's `str` and `repr` do.

use std::fmt::Write as _;

use super::error::{Fault, Result};
use super::eval::Interpreter;
use super::value::{Dict, Value, View};

/// Writes a float as Python does: with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    let scientific = format!("{x:e}");
    let parts = scientific.split_once('e');
    let Some((digits, exponent)) =
        parts.and_then(|(digits, e)| Some((digits, e.parse::<i32>().ok()?)))
    else {
        return scientific;
    };
    match exponent {
        -4..16 if x.fract() == 0.0 => format!("{x:.1}"),
        -4..16 => x.to_string(),
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

impl Interpreter<'_> {
    /// `str(value)`.
    pub(super) fn str(&self, value: &Value) -> Result<String> {
        match value {
            Value::Text(text) => Ok(text.as_str().to_owned()),
            Value::Undefined(_) => Ok(String::new()),
            _ => self.repr(value),
        }
    }

    /// `repr(value)`.
    pub(super) fn repr(&self, value: &Value) -> Result<String> {
        let mut out = String::new();
        self.write_repr(&mut out, value, 0)?;
        Ok(out)
    }

    fn write_repr(&self, out: &mut String, value: &Value, depth: usize) -> Result<()> {
        self.step(1)?;
        self.check_memory(out.len())?;
        match value {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(number) => put(out, format_args!("{number}")),
            Value::Big(number) => put(out, format_args!("{number}")),
            Value::Float(number) => out.push_str(&float(*number)),
            Value::Text(text) => {
                if text.is_safe() {
                    out.push_str("Markup(");
                }
                quote(out, text.as_str());
                if text.is_safe() {
                    out.push(')');
                }
            }
            Value::Bytes(bytes) => quote_bytes(out, bytes),
            Value::List(items) => self.write_items(out, items, ["[", "]"], depth)?,
            Value::Tuple(items) => {
                let close = if items.len() == 1 { ",)" } else { ")" };
                self.write_items(out, items, ["(", close], depth)?;
            }
            Value::Dict(dict) => self.write_dict(out, dict, depth)?,
            Value::View(dict, View::Keys) => {
                let keys: Vec<Value> = dict.entries().iter().map(|(key, _)| key.clone()).collect();
                self.write_items(out, &keys, ["dict_keys([", "])"], depth)?;
            }
            Value::View(_, view) => {
                let open = if *view == View::Values {
                    "dict_values(["
                } else {
                    "dict_items(["
                };
                self.write_items(out, &value.items()?, [open, "])"], depth)?;
            }
            Value::Range(range) => {
                let stop = range.start + range.step * range.len as i64;
                match range.step {
                    1 => put(out, format_args!("range({}, {stop})", range.start)),
                    step => put(out, format_args!("range({}, {stop}, {step})", range.start)),
                }
            }
            Value::Generator(generator) => {
                put(out, format_args!("<generator object {}>", generator.name));
            }
            Value::Object(id) => return self.write_object(out, *id, depth),
            Value::Method(method) => put(
                out,
                format_args!(
                    "<built-in method {} of {} object>",
                    method.1,
                    method.0.type_name()
                ),
            ),
            Value::Function(name) => put(out, format_args!("<function {name}>")),
        }
        Ok(())
    }

    fn write_dict(&self, out: &mut String, dict: &Dict, depth: usize) -> Result<()> {
        out.push('{');
        for (index, (key, value)) in dict.entries().iter().enumerate() {
            out.push_str(if index > 0 { ", " } else { "" });
            self.write_repr(out, key, depth + 1)?;
            out.push_str(": ");
            self.write_repr(out, value, depth + 1)?;
        }
        out.push('}');
        Ok(())
    }

    fn write_items(
        &self,
        out: &mut String,
        items: &[Value],
        [open, close]: [&str; 2],
        depth: usize,
    ) -> Result<()> {
        out.push_str(open);
        for (index, item) in items.iter().enumerate() {
            out.push_str(if index > 0 { ", " } else { "" });
            self.write_repr(out, item, depth + 1)?;
        }
        out.push_str(close);
        Ok(())
    }

    /// Writes the entries of a namespace. A namespace may contain itself, so the depth is limited here.
    pub(super) fn write_entries(
        &self,
        out: &mut String,
        entries: &[(String, Value)],
        depth: usize,
    ) -> Result<()> {
        if depth > usize::from(super::value::MAX_DEPTH) {
            return Err(Fault::Depth);
        }
        out.push('{');
        for (index, (key, value)) in entries.iter().enumerate() {
            out.push_str(if index > 0 { ", " } else { "" });
            quote(out, key);
            out.push_str(": ");
            self.write_repr(out, value, depth + 1)?;
        }
        out.push('}');
        Ok(())
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

/// Writes a text in quotes, as Python's `repr` does.
pub(super) fn quote(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => {
                out.push('\\');
                out.push(quote);
            }
            ' '..='~' => out.push(character),
            _ if is_printable(character) => out.push(character),
            _ => match u32::from(character) {
                code @ ..0x100 => put(out, format_args!("\\x{code:02x}")),
                code @ 0x100..0x1_0000 => put(out, format_args!("\\u{code:04x}")),
                code => put(out, format_args!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable` for one character, except for characters that no version of Unicode has assigned.
pub(super) fn is_printable(character: char) -> bool {
    let hidden = matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{a0}'
            | '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{1680}'
            | '\u{180e}'
            | '\u{2000}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}'
            | '\u{205f}'..='\u{206f}'
            | '\u{3000}'
            | '\u{e000}'..='\u{f8ff}'
            | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{fffe}'..='\u{ffff}'
            | '\u{e0000}'..='\u{e0fff}'
            | '\u{f0000}'..='\u{10ffff}'
    );
    !hidden
}

fn quote_bytes(out: &mut String, bytes: &[u8]) {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') {
        '"'
    } else {
        '\''
    };
    out.push('b');
    out.push(quote);
    for byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            _ if char::from(*byte) == quote => {
                out.push('\\');
                out.push(quote);
            }
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => put(out, format_args!("\\x{byte:02x}")),
        }
    }
    out.push(quote);
}
