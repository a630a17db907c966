//! Finds the first field that differs between two values of one type.

use serde::Serialize;
use serde_json::Value;

/// The largest number of characters shown of a value.
const SHOWN_CHARS: usize = 120;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDifference {
    /// The path of the field, such as `rows[3].seq` or `rows (length)`; empty for the whole value.
    pub field: String,
    pub recorded: String,
    pub replayed: String,
}

/// Returns the first differing field; `None` if all fields are equal.
pub fn first_difference<T: Serialize>(recorded: &T, replayed: &T) -> Option<FieldDifference> {
    let value = |of: &T| serde_json::to_value(of).unwrap_or(Value::Null);
    let mut path = String::new();
    difference_at(&value(recorded), &value(replayed), &mut path)
}

fn difference_at(recorded: &Value, replayed: &Value, path: &mut String) -> Option<FieldDifference> {
    if recorded == replayed {
        return None;
    }
    let parent_len = path.len();
    match (recorded, replayed) {
        (Value::Object(recorded), Value::Object(replayed))
            if recorded.keys().eq(replayed.keys()) =>
        {
            for ((key, recorded), replayed) in recorded.iter().zip(replayed.values()) {
                if parent_len > 0 {
                    path.push('.');
                }
                path.push_str(key);
                if let Some(difference) = difference_at(recorded, replayed, path) {
                    return Some(difference);
                }
                path.truncate(parent_len);
            }
            None
        }
        (Value::Array(recorded), Value::Array(replayed)) => {
            let pairs = recorded.iter().zip(replayed).enumerate();
            for (index, (recorded, replayed)) in pairs {
                path.push_str(&format!("[{index}]"));
                if let Some(difference) = difference_at(recorded, replayed, path) {
                    return Some(difference);
                }
                path.truncate(parent_len);
            }
            let length = |items: &[Value]| format!("{} entries", items.len());
            path.push_str(" (length)");
            Some(difference(path, length(recorded), length(replayed)))
        }
        _ => Some(difference(path, shown(recorded), shown(replayed))),
    }
}

fn difference(path: &str, recorded: String, replayed: String) -> FieldDifference {
    FieldDifference {
        field: path.trim_start().to_owned(),
        recorded,
        replayed,
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_differing_field_is_shown_with_both_values() {
        let difference = |a: Value, b: Value| first_difference(&a, &b);
        let check = |a: Value, b: Value, field: &str, recorded: &str, replayed: &str| {
            let difference = difference(a, b).expect("they differ");
            assert_eq!(
                (
                    difference.field.as_str(),
                    difference.recorded.as_str(),
                    difference.replayed.as_str()
                ),
                (field, recorded, replayed)
            );
        };
        use serde_json::json;
        assert_eq!(difference(json!({"a": [1]}), json!({"a": [1]})), None);
        check(
            json!({"a": [1, {"b": 2}]}),
            json!({"a": [1, {"b": 3}]}),
            "a[1].b",
            "2",
            "3",
        );
        check(
            json!([1, 2]),
            json!([1]),
            "(length)",
            "2 entries",
            "1 entries",
        );
        check(
            json!({"Run": 1}),
            json!({"Plan": 1}),
            "",
            "{\"Run\":1}",
            "{\"Plan\":1}",
        );
        let long = "é".repeat(500);
        let difference = difference(json!(long), json!(0)).expect("they differ");
        assert!(difference.recorded.chars().count() <= SHOWN_CHARS + 1);
    }
}
