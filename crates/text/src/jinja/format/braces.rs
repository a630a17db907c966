//! Implements Python's `str.format`.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::value::Value;

/// The arguments of `str.format`, and the state of automatic field numbering.
struct Fields<'a> {
    args: &'a Args,
    next: usize,
    has_numbers: bool,
}

impl Interpreter<'_> {
    pub(in super::super) fn format_text(&self, text: &str, args: &Args) -> Result<String> {
        let mut fields = Fields {
            args,
            next: 0,
            has_numbers: false,
        };
        self.format_nested(text, &mut fields, 2)
    }

    fn format_nested(&self, text: &str, fields: &mut Fields<'_>, levels: usize) -> Result<String> {
        if levels == 0 {
            return Fault::other("Max string recursion exceeded");
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Fault::other("Single '}' encountered in format string");
            }
            let Some(end) = closing(rest) else {
                return Fault::other(if rest.is_empty() {
                    "Single '{' encountered in format string"
                } else {
                    "expected '}' before end of string"
                });
            };
            self.step(1)?;
            out.push_str(&self.format_field(&rest[..end], fields, levels)?);
            self.check_memory(out.len())?;
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn format_field(&self, field: &str, fields: &mut Fields<'_>, levels: usize) -> Result<String> {
        let name_end = name_end(field);
        let (name, rest) = field.split_at(name_end);
        let mut value = self.field(name, fields)?;
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => {
                let mut chars = rest.chars();
                let conversion = chars.next();
                let rest = chars.as_str();
                match rest.strip_prefix(':') {
                    Some(spec) => (conversion, spec),
                    None if rest.is_empty() => (conversion, ""),
                    None => return Fault::other("expected ':' after conversion specifier"),
                }
            }
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        match conversion {
            None => (),
            Some('s') => value = Value::text(self.str(&value)?),
            Some('r' | 'a') => value = Value::text(self.repr(&value)?),
            Some(other) => {
                return Fault::other(format!("Unknown conversion specifier {other}"));
            }
        }
        let spec = if spec.contains(['{', '}']) {
            self.format_nested(spec, fields, levels - 1)?
        } else {
            spec.to_owned()
        };
        self.format_value(&value, &spec)
    }

    /// Evaluates a field name such as `0.name[1]`: an argument, then its attributes and items.
    fn field(&self, name: &str, fields: &mut Fields<'_>) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = match first.parse::<usize>() {
            Ok(index) => {
                if fields.next > 0 {
                    return Fault::other(
                        "cannot switch from automatic field numbering to manual field specification",
                    );
                }
                fields.has_numbers = true;
                positional(fields.args, index)?
            }
            Err(_) if first.is_empty() => {
                if fields.has_numbers {
                    return Fault::other(
                        "cannot switch from manual field specification to automatic field numbering",
                    );
                }
                fields.next += 1;
                positional(fields.args, fields.next - 1)?
            }
            Err(_) => {
                let mut named = fields.args.named.iter();
                match named.find(|(known, _)| known == first) {
                    Some((_, value)) => value.clone(),
                    None => return Fault::other(format!("'{first}'")),
                }
            }
        };
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = self.attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else if let Some((index, after)) =
                rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
            {
                let index = match index.parse() {
                    Ok(number) => Value::Int(number),
                    Err(_) => Value::text(index),
                };
                value = self.item(&value, &index)?;
                rest = after;
            } else {
                return Fault::other("Only '.' or '[' may follow ']' in format field specifier");
            }
        }
        Ok(value)
    }
}

fn positional(args: &Args, index: usize) -> Result<Value> {
    match args.positional.get(index) {
        Some(value) => Ok(value.clone()),
        None => Fault::other(format!(
            "Replacement index {index} out of range for positional args tuple"
        )),
    }
}

/// The index of the brace that closes the field at the start of `rest`.
fn closing(rest: &str) -> Option<usize> {
    let mut open = 1;
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' => open -= 1,
            _ => (),
        }
        if open == 0 {
            return Some(at);
        }
    }
    None
}

fn name_end(field: &str) -> usize {
    let mut in_item = false;
    for (at, byte) in field.bytes().enumerate() {
        match byte {
            b'[' => in_item = true,
            b']' => in_item = false,
            b'!' | b':' if !in_item => return at,
            _ => (),
        }
    }
    field.len()
}
