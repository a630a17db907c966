//! Lists and dispatches the methods of Python's types.

mod case;
mod collections;
mod search;
mod splitting;
mod text;

use super::args::Args;
use super::error::{Fault, Result};
use super::eval::Interpreter;
use super::value::Value;
pub(super) use case::{capitalized, centered};
pub(super) use splitting::{lines, words};

pub(super) fn method_names(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Text(_) => &TEXT_METHODS,
        Value::Dict(_) => &["get", "items", "keys", "values", "copy", "fromkeys"],
        Value::List(_) => &["count", "index", "copy"],
        Value::Tuple(_) | Value::Range(_) => &["count", "index"],
        Value::Bytes(_) => &["decode", "hex"],
        Value::Int(_) | Value::Big(_) | Value::Bool(_) => &[
            "bit_length",
            "bit_count",
            "conjugate",
            "as_integer_ratio",
            "is_integer",
        ],
        Value::Float(_) => &["is_integer", "conjugate", "hex"],
        Value::Function("dict") => &["fromkeys"],
        _ => &[],
    }
}

const TEXT_METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// Whether a method changes its value, which the sandbox of transformers forbids.
pub(super) fn is_mutating(value: &Value, name: &str) -> bool {
    let names: &[&str] = match value {
        Value::Dict(_) => &["clear", "pop", "popitem", "setdefault", "update"],
        Value::List(_) => &[
            "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
        ],
        _ => &[],
    };
    names.contains(&name)
}

impl Interpreter<'_> {
    pub(super) fn call_method(&self, value: &Value, name: &str, args: Args) -> Result<Value> {
        match value {
            Value::Text(text) => self.call_text_method(value, text.as_str(), name, args),
            _ => self.call_other_method(value, name, args),
        }
    }

    pub(super) fn text_of<'a>(&self, value: &'a Value) -> Result<&'a str> {
        match value {
            Value::Text(text) => {
                self.step(text.as_str().len() / 256)?;
                Ok(text.as_str())
            }
            Value::Undefined(message) => Fault::other(message.to_string()),
            other => Fault::other(format!("the value must be str, not {}", other.type_name())),
        }
    }
}
