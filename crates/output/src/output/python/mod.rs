//! Python's notation of calls and values, translated to JSON.

pub(super) mod atom;
mod call;
mod text;
mod value;

pub(super) use call::PythonReader;

use super::json::Scan;
use value::ValueReader;

/// Returns a Python value as JSON, if the text is a valid one.
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
