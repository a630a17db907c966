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

/// The JSON of each item of the list `raw`; empty if no item of `parsed` may have other digits, or if lengths differ.
pub(super) fn texts_of(raw: Option<&Raw>, parsed: &[Value]) -> Vec<Raw> {
    let raw = raw.filter(|_| parsed.iter().any(may_differ));
    let items = raw.and_then(|raw| raw.items("a list", parsed.len()).ok());
    let items = items.filter(|(_, len)| *len == parsed.len());
    items.map_or_else(Vec::new, |(items, _)| items)
}

/// Returns arguments for a template: the parsed value, or its JSON as a string if their digits may differ.
pub(super) fn arguments(parsed: Value, raw: Option<Raw>) -> Value {
    match raw.filter(|_| may_differ(&parsed)) {
        Some(raw) => Value::String(raw.text().into_owned()),
        None => parsed,
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
            let parsed = arguments(value.clone(), Some(Raw::in_text(json)));
            let kept = if differs { Value::from(json) } else { value };
            assert_eq!(parsed, kept);
        }
    }
}
