//! Translates numbers and words of Python to JSON.

use crate::output::escape::write_json_string;
use crate::output::number;

/// Whether a character may belong to a number or a word.
pub(super) fn is_atom(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '+' | '-')
}

pub(in crate::output) fn write(atom: &str, to: &mut String) {
    match atom {
        "True" | "true" => to.push_str("true"),
        "False" | "false" => to.push_str("false"),
        "None" | "null" => to.push_str("null"),
        _ => match number::to_json(atom) {
            Some(number) => to.push_str(&number),
            None => write_json_string(atom, to),
        },
    }
}

pub(super) fn write_key(atom: &str, to: &mut String) {
    let mut json = String::new();
    write(atom, &mut json);
    if json.starts_with('"') {
        to.push_str(&json)
    } else {
        write_json_string(&json, to)
    }
}
