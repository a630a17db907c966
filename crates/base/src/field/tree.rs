//! Complete JSON values from clients, guarded against serde_json's raw-value key.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// An upper bound on the number of values in a JSON text, the outermost one included, without parsing.
pub fn count_values(text: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => (),
        }
    }
    count
}

/// A [`Value`] that was parsed without serde_json's raw values.
///
/// The deserialiser of `Value` takes an object with serde_json's private raw-value key for a raw value, and parses the
/// JSON in that key's string. With that key a client could bypass limits on the number of values.
#[derive(Debug, PartialEq)]
pub struct Tree(pub Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor).map(Self)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Tree(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, Tree(value))) = object.next_entry()? {
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_equals_the_value_of_serde_json() {
        let text = r#"{"a": [1, -2, 1.5, 1e300, 18446744073709551615, true, null, "\u00e4"], "b": {}, "a b": [[]]}"#;
        let Tree(tree) = serde_json::from_str(text).expect("the text is JSON");
        assert_eq!(
            tree,
            serde_json::from_str::<Value>(text).expect("the text is JSON")
        );
    }

    #[test]
    fn text_of_the_raw_value_key_is_not_parsed() {
        let text = r#"{"\u0024serde_json::private::RawValue": "[[0], [0]]"}"#;
        let Tree(tree) = serde_json::from_str(text).expect("the text is JSON");
        let inside = tree.as_object().and_then(|object| object.values().next());
        assert_eq!(inside.and_then(Value::as_str), Some("[[0], [0]]"));
    }
}
