//! Pieces of a body's JSON that are not parsed yet. Each is parsed once its expected type is known.

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use actix_web::web::Bytes;

use super::error::ApiError;
use souffleur_base::field::{self, Shallow, Tree};

/// The text of one JSON value, without spaces around it.
#[derive(Clone, Debug)]
pub(super) struct Raw(Bytes);

impl Raw {
    /// Refers to `value`, which must be a part of `body`.
    pub(super) fn of(body: &Bytes, value: &RawValue) -> Self {
        Self(body.slice_ref(value.get().as_bytes()))
    }

    pub(super) fn from_value(value: &serde_json::Value) -> Self {
        Self(Bytes::from(value.to_string()))
    }

    pub(super) fn of_bytes(json: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(json))
    }

    /// JSON from a string. It is not checked before it is parsed.
    pub(super) fn in_text(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.trim().as_bytes()))
    }

    pub(super) fn is_null(&self) -> bool {
        self.0.as_ref() == b"null"
    }

    pub(super) fn is_list(&self) -> bool {
        self.0.first() == Some(&b'[')
    }

    pub(super) fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    pub(super) fn is_text(&self) -> bool {
        self.0.first() == Some(&b'"')
    }

    /// The first byte after a list's `[` and white space: the start of the first item, or `]`. `None` if it is no list.
    pub(super) fn first_of_list(&self) -> Option<u8> {
        let items = self.0.strip_prefix(b"[")?;
        items
            .iter()
            .copied()
            .find(|byte| !byte.is_ascii_whitespace())
    }

    /// True for null, false, an empty text and an empty list, which clients send for unused fields. An empty object may
    /// have an effect, such as the schema that accepts everything.
    pub(super) fn has_no_effect(&self) -> bool {
        matches!(self.0.as_ref(), b"null" | b"false" | b"\"\"")
            || self.first_of_list() == Some(b']')
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// An upper bound of the number of JSON values in this one, itself included.
    pub(super) fn count_values(&self) -> usize {
        field::count_values(&self.0)
    }

    /// Parses the value. Errors name the field and the position of the invalid text.
    pub(super) fn parse<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Result<T, ApiError> {
        self.parse_with(name, std::marker::PhantomData)
    }

    /// Parses the value in full; its values must have been counted before.
    pub(super) fn parse_tree(&self, name: &str) -> Result<serde_json::Value, ApiError> {
        self.parse(name).map(|Tree(tree)| tree)
    }

    /// As [`Self::parse`], by a deserializer that has state, such as a limit.
    pub(super) fn parse_with<'a, S: DeserializeSeed<'a>>(
        &'a self,
        name: &str,
        seed: S,
    ) -> Result<S::Value, ApiError> {
        let mut text = serde_json::Deserializer::from_slice(&self.0);
        seed.deserialize(&mut text)
            .and_then(|value| text.end().map(|()| value))
            .map_err(|error| {
                let json = if error.is_data() { "" } else { " JSON" };
                ApiError::field(name, format!("{name} is not valid{json}: {error}"))
            })
    }

    pub(super) fn shallow(&self, name: &str) -> Result<Shallow, ApiError> {
        self.parse(name)
    }

    /// The first items of a list, at most `limit`, and the list's length.
    pub(super) fn items(&self, name: &str, limit: usize) -> Result<(Vec<Self>, usize), ApiError> {
        let (items, len) = self.parse_with(name, FirstItems(limit))?;
        let items = items.into_iter().map(|item| Self::of(&self.0, item));
        Ok((items.collect(), len))
    }

    /// The fields of an object in their order, duplicates included; empty if the value is not an object.
    pub(super) fn entries(&self) -> Vec<(String, Self)> {
        let entries = self.parse_with("an object", Entries).unwrap_or_default();
        let entries = entries.into_iter();
        entries
            .map(|(name, value)| (name, Self::of(&self.0, value)))
            .collect()
    }

    /// A field of an object. If two fields have the same name, the last one counts.
    pub(super) fn field(&self, name: &str) -> Option<Self> {
        let mut entries = self.entries().into_iter().rev();
        entries.find_map(|(key, value)| (key == name).then_some(value))
    }

    pub(super) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

struct Entries;

impl<'de> DeserializeSeed<'de> for Entries {
    type Value = Vec<(String, &'de RawValue)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// Reads the first items of a list and counts the others.
struct FirstItems(usize);

impl<'de> DeserializeSeed<'de> for FirstItems {
    type Value = (Vec<&'de RawValue>, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for FirstItems {
    type Value = (Vec<&'de RawValue>, usize);

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < self.0 {
            match list.next_element()? {
                Some(item) => items.push(item),
                None => {
                    let len = items.len();
                    return Ok((items, len));
                }
            }
        }
        let mut len = items.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            len += 1;
        }
        Ok((items, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &'static str) -> Raw {
        Raw(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn commas_and_brackets_in_strings_are_not_counted() {
        assert_eq!(raw("7").count_values(), 1);
        assert_eq!(raw("[1,2,3]").count_values(), 4);
        // There are five: the bound counts the empty object as if it had a value.
        assert_eq!(raw(r#"{"a":[1,2],"b":{}}"#).count_values(), 6);
        assert_eq!(raw(r#"",,[[\",,""#).count_values(), 1);
    }

    #[test]
    fn entries_keep_their_order_and_duplicates() {
        let object = raw(r#"{"b": 1e2, "a": [ 1 ], "\u0062": 12345678901234567890123}"#);
        let entries = object.entries();
        let texts: Vec<(&str, &[u8])> = entries
            .iter()
            .map(|(name, value)| (name.as_str(), value.bytes().as_ref()))
            .collect();
        let last: &[u8] = b"12345678901234567890123";
        assert_eq!(
            texts,
            [
                ("b", b"1e2".as_slice()),
                ("a", b"[ 1 ]".as_slice()),
                ("b", last)
            ]
        );
        let field = object.field("b").expect("it is there");
        assert_eq!(field.bytes().as_ref(), last);
        assert!(object.field("c").is_none());
        assert!(raw("[1]").entries().is_empty() && raw("{\"a\"").entries().is_empty());
    }

    #[test]
    fn a_list_returns_its_first_items_and_its_length() {
        let list = raw(r#"[ "a,]" , [1, 2], null]"#);
        assert_eq!(list.first_of_list(), Some(b'"'));
        let (items, len) = list.items("x", 2).expect("it is a list");
        let texts: Vec<&[u8]> = items.iter().map(|item| item.bytes().as_ref()).collect();
        assert_eq!(
            (texts.as_slice(), len),
            ([&br#""a,]""#[..], b"[1, 2]"].as_slice(), 3)
        );
    }
}
