//! Translates Python's notation of calls and values to JSON.

pub(super) mod atom;
mod call;
mod text;
mod value;

pub(super) use call::PythonReader;

use super::json::Scan;
use value::ValueReader;

/// Translates a value to JSON; `None` if the text is not a valid Python value.
pub(super) fn literal(text: &str) -> Option<String> {
    let mut reader = ValueReader::new();
    let mut json = String::with_capacity(text.len());
    let mut chars = text.chars();
    for c in chars.by_ref() {
        match reader.read(c, &mut json) {
            Scan::More => {}
            Scan::Done => return chars.as_str().is_empty().then_some(json),
            Scan::DoneBefore | Scan::Broken => return None,
        }
    }
    None
}
