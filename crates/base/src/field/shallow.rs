//! JSON values truncated to the depth and length that a request field needs; the rest is parsed but not stored.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Number;

/// A JSON value whose lists and objects keep only their first entries, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Shallow {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List {
        /// The first items up to the limit. Lists and objects among them have no contents.
        items: Vec<Shallow>,
        len: usize,
        /// Whether every item is null, false or an empty list.
        is_nothing: bool,
    },
    Map {
        /// The first entries up to the limit. Lists and objects among them have no contents.
        entries: Vec<(String, Shallow)>,
        len: usize,
    },
}

impl Shallow {
    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_u64(&self) -> Option<u64> {
        self.number()?.as_u64()
    }

    pub fn as_i64(&self) -> Option<i64> {
        self.number()?.as_i64()
    }

    pub fn as_f64(&self) -> Option<f64> {
        self.number()?.as_f64()
    }

    fn number(&self) -> Option<&Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// True of values without effect, which frontends send for unused features: null, false, empty strings, lists and
    /// objects, and lists of only null, false and empty lists.
    pub fn has_no_effect(&self) -> bool {
        match self {
            Self::Null | Self::Bool(false) => true,
            Self::Bool(true) | Self::Number(_) => false,
            Self::Text(text) => text.is_empty(),
            Self::List { is_nothing, .. } => *is_nothing,
            Self::Map { len, .. } => *len == 0,
        }
    }

    /// The value without the contents of lists and objects.
    pub fn of(value: &serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List {
                items: Vec::new(),
                len: items.len(),
                is_nothing: items.is_empty(),
            },
            Value::Object(fields) => Self::Map {
                entries: Vec::new(),
                len: fields.len(),
            },
        }
    }

    fn is_nothing_in_a_list(&self) -> bool {
        matches!(
            self,
            Self::Null | Self::Bool(false) | Self::List { len: 0, .. }
        )
    }
}

/// For errors: strings are truncated, lists and objects only described.
impl fmt::Display for Shallow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => Cut(text).fmt(f),
            Self::List { len: 1, .. } => f.write_str("a list of 1 item"),
            Self::List { len, .. } => write!(f, "a list of {len} items"),
            Self::Map { .. } => f.write_str("an object"),
        }
    }
}

/// Displays a client's text in quotes, truncated to 48 characters.
pub struct Cut<'a>(pub &'a str);

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 48;
        match self.0.char_indices().nth(MAX_CHARS) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
        }
    }
}

impl<'de> Deserialize<'de> for Shallow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Keep(0).deserialize(deserializer)
    }
}

/// Deserialises a value and keeps at most this number of its items or entries.
#[derive(Clone, Copy)]
pub struct Keep(pub usize);

impl<'de> DeserializeSeed<'de> for Keep {
    type Value = Shallow;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shallow, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keep {
    type Value = Shallow;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Shallow, E> {
        Ok(Shallow::Null)
    }

    fn visit_none<E>(self) -> Result<Shallow, E> {
        Ok(Shallow::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shallow, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Shallow, E> {
        Ok(Shallow::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Shallow, E> {
        Ok(Shallow::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Shallow, E> {
        Ok(Shallow::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Shallow, E> {
        let number = Number::from_f64(value).map(Shallow::Number);
        number.ok_or_else(|| E::custom(format!("{value} is not a JSON number")))
    }

    fn visit_str<E>(self, text: &str) -> Result<Shallow, E> {
        Ok(Shallow::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Shallow, E> {
        Ok(Shallow::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shallow, A::Error> {
        let (mut items, mut len, mut is_nothing) = (Vec::new(), 0, true);
        while let Some(item) = list.next_element::<Shallow>()? {
            len += 1;
            is_nothing &= item.is_nothing_in_a_list();
            if items.len() < self.0 {
                items.push(item);
            }
        }
        Ok(Shallow::List {
            items,
            len,
            is_nothing,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shallow, A::Error> {
        let (mut entries, mut len) = (Vec::new(), 0);
        loop {
            if entries.len() < self.0 {
                match map.next_entry()? {
                    Some(entry) => entries.push(entry),
                    None => break,
                }
            } else if map.next_entry::<IgnoredAny, IgnoredAny>()?.is_none() {
                break;
            }
            len += 1;
        }
        Ok(Shallow::Map { entries, len })
    }
}

/// A list of token ids, parsed directly into numbers; or its first invalid item.
pub enum TokenIds {
    Ids(Vec<u32>),
    Bad { index: usize, found: Shallow },
}

/// Deserialises [`TokenIds`]; `expected` is the initial capacity.
pub struct ReadTokenIds {
    pub expected: usize,
}

impl<'de> DeserializeSeed<'de> for ReadTokenIds {
    type Value = TokenIds;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TokenIds, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ReadTokenIds {
    type Value = TokenIds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TokenIds, A::Error> {
        let mut ids = Vec::with_capacity(self.expected);
        while let Some(found) = list.next_element::<Shallow>()? {
            match found.as_u64().map(u32::try_from) {
                Some(Ok(token)) => ids.push(token),
                _ => {
                    let index = ids.len();
                    while list.next_element::<IgnoredAny>()?.is_some() {}
                    return Ok(TokenIds::Bad { index, found });
                }
            }
        }
        Ok(TokenIds::Ids(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let value: Shallow = serde_json::from_str(text).expect("the text is JSON");
        assert_eq!(value.to_string(), expected);
    }

    #[test]
    fn long_values_are_truncated_when_displayed() {
        check("null", "null");
        check("-1.5", "-1.5");
        check("100000000000000000000", "1e+20");
        check("[[0], {}, \"x\"]", "a list of 3 items");
        check("{\"a\": [1]}", "an object");
        let long = format!("{:?}", "é".repeat(1000));
        check(&long, &format!("\"{}\"...", "é".repeat(48)));
    }

    #[test]
    fn keep_limits_the_number_of_stored_items() {
        let text = "[1, 2, 3, [4, 5]]";
        let read = Keep(2).deserialize(&mut serde_json::Deserializer::from_str(text));
        let Shallow::List { items, len, .. } = read.expect("the text is JSON") else {
            panic!("the value is not a list")
        };
        assert_eq!((items.len(), len), (2, 4));
    }
}
