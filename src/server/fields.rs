//! Holds the unparsed fields of a JSON object and parses each of them on demand.

use actix_web::web::Bytes;
use rustc_hash::FxHashMap;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::budget::{BodyCharge, Charges};
use super::error::ApiError;
use super::raw::Raw;
use souffleur_base::error::FieldError;
use souffleur_base::field::{self, Field, Integer, ReadTokenIds, Shallow};

/// Maximum number of fields of an object; clients send a few dozen.
const MAX_FIELDS: usize = 1024;
/// Maximum number of copies of a body's text that parsing makes.
const TEXT_COPIES: usize = 2;
/// Bytes of a token id while a list of token ids is copied from a `Vec` to an `Arc`.
const TOKEN_BYTES: usize = 2 * size_of::<u32>();
/// Maximum bytes that a JSON value takes in addition to its text, as an entry of an object.
const VALUE_BYTES: usize = 256;

/// The fields of a JSON object that have not been read yet. A null field counts as absent.
pub(super) struct Fields {
    fields: FxHashMap<String, Raw>,
    max_values: usize,
    /// Number of JSON values parsed in full so far, nested ones included.
    values: usize,
    /// The part of `values` that belongs to the prompt.
    prompt_values: usize,
    charge: BodyCharge,
    /// The charge for values that are kept as long as the request.
    request_charge: BodyCharge,
}

impl Fields {
    /// Finds the fields of an object. `charge` already covers the body's bytes; parsed values are added to it later.
    ///
    /// # Errors
    /// An error if the body is not valid JSON, or not an object; 503 if the body budget is used up.
    pub(super) fn read(
        body: Bytes,
        mut charge: BodyCharge,
        max_values: usize,
    ) -> Result<Self, ApiError> {
        charge.grow(TEXT_COPIES * body.len())?;
        let start = body.iter().find(|byte| !byte.is_ascii_whitespace());
        let fields = match start {
            Some(b'{') => read_object(&body),
            _ => serde_json::from_slice::<IgnoredAny>(&body).map(|_| Object::OtherValue),
        };
        let fields = fields
            .map_err(|error| ApiError::invalid(format!("body is not valid JSON: {error}")))?;
        match fields {
            Object::Fields(fields) => Ok(Self {
                fields,
                max_values,
                values: 0,
                prompt_values: 0,
                request_charge: charge.sibling(),
                charge,
            }),
            Object::TooMany => Err(ApiError::invalid(format!(
                "body has more than {MAX_FIELDS} fields: send fewer"
            ))),
            Object::OtherValue => Err(ApiError::invalid(
                "body is not a JSON object: send {\"field\": value, ...}",
            )),
        }
    }

    #[cfg(test)]
    pub(super) fn of(value: &Value) -> Self {
        let charge = super::budget::BodyBudget::new(1 << 30).open();
        let read = Self::read(value.to_string().into(), charge, 1 << 10);
        read.unwrap_or_else(|error| panic!("{value}: {error}"))
    }

    #[cfg(test)]
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.fields.insert(name.to_owned(), Raw::from_value(&value));
    }

    #[cfg(test)]
    pub(super) fn put_raw(&mut self, name: &str, raw: Raw) {
        self.fields.insert(name.to_owned(), raw);
    }

    pub(super) fn take_raw(&mut self, name: &str) -> Option<Raw> {
        self.fields.remove(name).filter(|raw| !raw.is_null())
    }

    /// Takes a field out and parses it, except for the contents of lists and objects.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<Shallow>, ApiError> {
        self.take_raw(name).map(|raw| raw.shallow(name)).transpose()
    }

    /// Takes a field out and parses it in full. Fails before parsing if the body has too many JSON values.
    pub(super) fn take_tree(&mut self, name: &str) -> Result<Option<Value>, ApiError> {
        let raw = self.take_raw(name);
        raw.map(|raw| self.tree(name, &raw)).transpose()
    }

    /// Parses JSON in full, for the prompt. Fails as [`Fields::take_tree`] does.
    pub(super) fn tree(&mut self, name: &str, raw: &Raw) -> Result<Value, ApiError> {
        self.count_for_prompt(name, raw)?;
        raw.parse_tree(name)
    }

    /// Counts and charges the values of JSON that the prompt will hold. Fails as [`Fields::take_tree`] does.
    pub(super) fn count_for_prompt(&mut self, name: &str, raw: &Raw) -> Result<(), ApiError> {
        let values = self.count(name, raw)?;
        self.charge.grow(values * VALUE_BYTES)?;
        self.prompt_values += values;
        Ok(())
    }

    /// Parses JSON in full, to keep it as long as the request. Fails as [`Fields::take_tree`] does.
    pub(super) fn request_tree(&mut self, name: &str, raw: &Raw) -> Result<Value, ApiError> {
        self.count(name, raw)?;
        self.charge_request(raw)?;
        raw.parse_tree(name)
    }

    /// Charges the memory of JSON that is kept as long as the request.
    pub(super) fn charge_request(&mut self, raw: &Raw) -> Result<(), ApiError> {
        let bytes = raw.bytes().len() + raw.count_values() * VALUE_BYTES;
        self.request_charge.grow(bytes)
    }

    /// Charges bytes that are kept as long as the request.
    pub(super) fn charge_request_bytes(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.request_charge.grow(bytes)
    }

    /// As [`Fields::tree`], for JSON that the server stored from an earlier request. Its text is charged as well.
    pub(super) fn kept_tree(&mut self, name: &str, kept: &[u8]) -> Result<Value, ApiError> {
        let raw = Raw::of_bytes(kept);
        self.charge.grow(kept.len())?;
        self.prompt_values += kept.len().div_ceil(VALUE_BYTES);
        self.tree(name, &raw)
    }

    fn count(&mut self, name: &str, raw: &Raw) -> Result<usize, ApiError> {
        let (values, limit) = (raw.count_values(), self.max_values);
        self.values += values;
        if self.values <= limit {
            Ok(values)
        } else {
            let text = format!(
                "{name} holds {values} JSON values, {} with earlier fields, limit is {limit} per body: send less at \
                 once",
                self.values
            );
            Err(ApiError::field(name, text))
        }
    }

    pub(super) fn token_ids(&mut self, name: &str, raw: &Raw) -> Result<Vec<u32>, ApiError> {
        self.charge.grow(raw.count_values() * TOKEN_BYTES)?;
        token_ids(name, raw)
    }

    /// Returns a field without taking it out; null counts as absent.
    pub(super) fn peek(&self, name: &str) -> Option<&Raw> {
        self.fields.get(name).filter(|raw| !raw.is_null())
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.fields.keys().cloned().collect()
    }

    /// The alphabetically first name of an unread field whose value has an effect.
    pub(super) fn first_unread(&self) -> Option<String> {
        let asked = self.fields.iter().filter(|(_, raw)| !raw.has_no_effect());
        asked.map(|(name, _)| name).min().cloned()
    }

    /// Sets a field that is absent or null.
    pub(super) fn default_to(&mut self, name: &str, value: Option<Value>) {
        if let Some(value) = value
            && self.fields.get(name).is_none_or(Raw::is_null)
        {
            self.fields.insert(name.to_owned(), Raw::from_value(&value));
        }
    }

    /// Returns a field's text without taking it out; `None` if the value is not a string.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let raw = self.fields.get(name).filter(|raw| raw.is_text())?;
        raw.parse(name).ok()
    }

    /// Takes an object out, to be read field by field; an absent field is an empty object.
    pub(super) fn object(&mut self, name: &str) -> Result<Self, ApiError> {
        let raw = self.take_raw(name);
        let raw = raw.unwrap_or_else(|| Raw::from_value(&Value::Object(Default::default())));
        self.nested(name, &raw)
    }

    pub(super) fn nested(&self, name: &str, raw: &Raw) -> Result<Self, ApiError> {
        if !raw.is_object() {
            let value = raw.shallow(name)?;
            return Err(Field::new(name, &value).must_be("an object").into());
        }
        let object = read_object(raw.bytes());
        let object = object
            .map_err(|error| ApiError::field(name, format!("{name} is not valid JSON: {error}")))?;
        let Object::Fields(fields) = object else {
            let text = format!("{name} has more than {MAX_FIELDS} fields: send fewer");
            return Err(ApiError::field(name, text));
        };
        Ok(Self {
            fields,
            max_values: self.max_values,
            values: self.values,
            prompt_values: 0,
            charge: self.charge.sibling(),
            request_charge: self.charge.sibling(),
        })
    }

    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let value = self.take(name)?;
        let text = value.map(|value| field::text(name, value));
        Ok(text.transpose()?)
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        self.optional_flag(name).map(Option::unwrap_or_default)
    }

    pub(super) fn optional_flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take_as(name, |field| field.boolean())
    }

    pub(super) fn integer<T: Integer>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        self.take_as(name, |field| field.integer())
    }

    /// A limit in tokens, clipped to `u32`.
    pub(super) fn token_limit(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        self.take_as(name, |field| field.token_limit())
    }

    pub(super) fn seed(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        self.take_as(name, |field| field.seed())
    }

    pub(super) fn seconds(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        self.take_as(name, |field| field.seconds())
    }

    fn take_as<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Field<'_>) -> Result<T, FieldError>,
    ) -> Result<Option<T>, ApiError> {
        match self.take(name)? {
            Some(value) => Ok(Some(read(Field::new(name, &value))?)),
            None => Ok(None),
        }
    }

    /// The charges for values that were parsed in full. The values outlive the fields and the body's text.
    pub(super) fn into_charges(self) -> Charges {
        let mut prompt = self.charge;
        prompt.shrink_to(self.prompt_values * VALUE_BYTES);
        Charges {
            prompt,
            request: self.request_charge,
        }
    }

    /// Refuses the first of `names` whose value has an effect.
    pub(super) fn refuse(&mut self, names: &[&str]) -> Result<(), ApiError> {
        for name in names {
            let asks = self.take(name)?.is_some_and(|value| !value.has_no_effect());
            if asks {
                return Err(ApiError::unsupported(name));
            }
        }
        Ok(())
    }
}

pub(super) fn token_ids(name: &str, raw: &Raw) -> Result<Vec<u32>, ApiError> {
    if !raw.is_list() {
        let value = raw.shallow(name)?;
        return Err(Field::new(name, &value)
            .must_be("a list of token ids")
            .into());
    }
    let expected = raw.count_values();
    let read = raw.parse_with(name, ReadTokenIds { expected })?;
    Ok(field::token_ids(name, read)?)
}

enum Object {
    Fields(FxHashMap<String, Raw>),
    TooMany,
    OtherValue,
}

fn read_object(body: &Bytes) -> serde_json::Result<Object> {
    let mut text = serde_json::Deserializer::from_slice(body);
    let object = FindFields(body).deserialize(&mut text)?;
    text.end()?;
    Ok(object)
}

/// Finds the fields of an object. If two fields have the same name, the last one counts.
struct FindFields<'a>(&'a Bytes);

impl<'de> DeserializeSeed<'de> for FindFields<'de> {
    type Value = Object;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FindFields<'de> {
    type Value = Object;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut fields = FxHashMap::default();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            fields.insert(name, Raw::of(self.0, value));
            if fields.len() > MAX_FIELDS {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Object::TooMany);
            }
        }
        Ok(Object::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::budget::BodyBudget;

    #[track_caller]
    fn check(value: Value, expected: &str) {
        let found = match Fields::of(&json!({ "best_of": value })).integer::<u32>("best_of") {
            Ok(number) => format!("{number:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn integers_are_whole_numbers_and_errors_show_other_values() {
        check(json!(16), "Some(16)");
        check(json!(16.0), "Some(16)");
        check(json!(null), "None");
        check(
            json!(-5),
            "best_of is -5, must be a whole number from 0 to 4294967295",
        );
        check(
            json!(1.5),
            "best_of is 1.5, must be a whole number from 0 to 4294967295",
        );
        check(
            json!("7"),
            "best_of is \"7\", must be a whole number from 0 to 4294967295",
        );
        check(
            json!([1, 2]),
            "best_of is a list of 2 items, must be a whole number from 0 to 4294967295",
        );
        let range = "must be a whole number from 0 to 4294967295";
        check(
            json!(1u64 << 32),
            &format!("best_of is 4294967296, {range}"),
        );
    }

    #[test]
    fn token_limits_are_clipped_and_never_negative() {
        let read =
            |value: Value| Fields::of(&json!({ "max_tokens": value })).token_limit("max_tokens");
        let huge = serde_json::from_str("100000000000000000000").expect("a number");
        assert_eq!(read(huge), Ok(Some(u32::MAX)));
        assert_eq!(read(json!(1_000_000_000_000u64)), Ok(Some(u32::MAX)));
        assert_eq!(read(json!(7.0)), Ok(Some(7)));
        let text = "max_tokens is -1, must be a whole number of at least 0";
        assert_eq!(read(json!(-1)), Err(ApiError::field("max_tokens", text)));
    }

    #[test]
    fn values_without_effect_are_not_refused() {
        let object = json!({"a": null, "b": false, "c": [], "d": "", "e": {}, "f": [null]});
        let mut fields = Fields::of(&object);
        assert_eq!(fields.refuse(&["a", "b", "c", "d", "e", "f", "g"]), Ok(()));
        fields.put("lora_path", json!("x"));
        assert_eq!(
            fields.refuse(&["a", "lora_path"]),
            Err(ApiError::unsupported("lora_path"))
        );
    }

    fn of_text(text: String) -> Fields {
        let charge = BodyBudget::new(1 << 30).open();
        Fields::read(text.into(), charge, 100).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn json_values_are_counted_before_they_are_parsed() {
        let mut fields = of_text(format!(
            r#"{{"messages": [{}0], "tools": []}}"#,
            "0,".repeat(99)
        ));
        let error = fields.take_tree("messages").expect_err("it is too large");
        let text = "messages holds 101 JSON values, 101 with earlier fields, limit is 100 per body: send less at once";
        assert_eq!(error, ApiError::field("messages", text));
        let mut fields = of_text(r#"{"messages": [",,,,"], "tools": [1.5]}"#.to_owned());
        assert_eq!(fields.take_tree("messages"), Ok(Some(json!([",,,,"]))));
        assert_eq!(fields.take_tree("tools"), Ok(Some(json!([1.5]))));
        assert_eq!(fields.take_tree("tools"), Ok(None));
    }

    #[test]
    fn objects_of_too_many_fields_are_refused() {
        let names: Vec<String> = (0..=MAX_FIELDS).map(|n| format!("\"{n}\":0")).collect();
        let text = format!("{{{}}}", names.join(","));
        let read = Fields::read(text.into(), BodyBudget::new(1 << 30).open(), 1);
        let error = read.err().expect("the object is refused").to_string();
        assert!(error.contains("more than 1024 fields"), "{error}");
    }

    #[test]
    fn values_kept_with_a_request_are_charged_until_it_ends() {
        const LIMIT: usize = 8 << 20;
        let budget = BodyBudget::new(LIMIT);
        let limit_of_one_body = LIMIT / 4 * 3 + (64 << 10); // The shares of large and of small bodies.
        let is_full = || budget.open().grow(limit_of_one_body).is_err();
        let body = json!({"messages": ["a"], "regex": "x".repeat(100_000)}).to_string();
        let read = Fields::read(body.into(), budget.open(), 100);
        let mut fields = read.unwrap_or_else(|error| panic!("{error}"));
        fields.take_tree("messages").expect("it is small");
        let regex = fields.take_raw("regex").expect("it is there");
        fields.request_tree("regex", &regex).expect("it is small");
        let charges = fields.into_charges();
        drop(charges.prompt);
        assert!(is_full());
        drop(charges.request);
        assert!(!is_full());
    }
}
