//! Keeps the digits of large integers in tool-call arguments. A parsed value holds an integer beyond 64 bits as a
//! float, which a chat template would print with other digits. So the template gets the arguments' JSON instead.

use serde_json::Value;

use super::raw::Raw;

/// A float of at least this magnitude may have been an integer that 64 bits do not hold.
const BIG_INTEGER: f64 = (1_u64 << 63) as f64;

/// Returns whether a value may hold an integer whose digits differ from its JSON: one beyond 64 bits, or `-0`.
pub(super) fn may_differ(value: &Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or_default();
            float.abs() >= BIG_INTEGER || (float == 0.0 && float.is_sign_negative())
        }
        Value::Array(items) => items.iter().any(may_differ),
        Value::Object(fields) => fields.values().any(may_differ),
        _ => false,
    }
}

/// The JSON of each item of the list `sent`; empty if no item of `read` may have other digits, or if lengths differ.
pub(super) fn texts_of(sent: Option<&Raw>, read: &[Value]) -> Vec<Raw> {
    let sent = sent.filter(|_| read.iter().any(may_differ));
    let items = sent.and_then(|sent| sent.items("a list", read.len()).ok());
    let items = items.filter(|(_, len)| *len == read.len());
    items.map_or_else(Vec::new, |(items, _)| items)
}

/// Returns arguments for a template: the parsed value, or its JSON as a string if their digits may differ.
pub(super) fn arguments(read: Value, sent: Option<Raw>) -> Value {
    match sent.filter(|_| may_differ(&read)) {
        Some(sent) => Value::String(sent.text().into_owned()),
        None => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_other_digits_than_their_json_are_detected() {
        for (json, differs) in [
            ("9223372036854775807", false),
            ("18446744073709551615", false),
            ("18446744073709551616", true),
            ("-9223372036854775808", false),
            ("-9223372036854775809", true),
            ("-0", true),
            ("0", false),
            ("1.10", false),
            ("1e5", false),
            ("[{\"a\": [12345678901234567890123]}]", true),
            ("{\"a\": \"12345678901234567890123\"}", false),
        ] {
            let value: Value = serde_json::from_str(json).expect("it is JSON");
            assert_eq!(may_differ(&value), differs, "{json}");
            let read = arguments(value.clone(), Some(Raw::in_text(json)));
            let kept = if differs { Value::from(json) } else { value };
            assert_eq!(read, kept);
        }
    }
}
