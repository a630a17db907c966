//! Reading a JSON object field by field, so that every error names the field, its value and what is wanted.

use serde_json::{Map, Value};

use super::error::ApiError;
use crate::request::RequestTimeouts;
use crate::state::sampling::{self, asks_for_nothing};

/// The fields of a JSON object that were not read yet. A null field counts as absent.
pub(super) struct Fields {
    map: Map<String, Value>,
}

impl Fields {
    pub(super) fn new(map: Map<String, Value>) -> Self {
        Self { map }
    }

    #[cfg(test)]
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    /// Takes a field out as it is.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Fills a field that is absent.
    pub(super) fn default_to(&mut self, name: &str, value: Option<Value>) {
        if let Some(value) = value
            && self.map.get(name).is_none_or(Value::is_null)
        {
            self.map.insert(name.to_owned(), value);
        }
    }

    /// A field's text, left in place; `None` if it is no text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.map.get(name)?.as_str()
    }

    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.take(name).map(|value| string(name, value)).transpose()
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        self.optional_flag(name).map(Option::unwrap_or_default)
    }

    pub(super) fn optional_flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take(name).map(|value| flag(name, &value)).transpose()
    }

    pub(super) fn count(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        self.take(name).map(|value| count(name, &value)).transpose()
    }

    /// A limit in tokens, clipped to `u32`.
    pub(super) fn token_limit(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        let read = |value: Value| {
            sampling::token_limit(&value)
                .ok_or_else(|| mismatch(name, &value, sampling::TOKEN_LIMIT))
        };
        self.take(name).map(read).transpose()
    }

    pub(super) fn seed(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        let read = |value: Value| {
            sampling::seed(&value).ok_or_else(|| mismatch(name, &value, sampling::SEED))
        };
        self.take(name).map(read).transpose()
    }

    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        self.take(name)
            .map(|value| integer(name, &value))
            .transpose()
    }

    /// `waiting_timeout` and `running_timeout`: how long the request may take.
    pub(super) fn timeouts(&mut self) -> Result<RequestTimeouts, ApiError> {
        Ok(RequestTimeouts {
            waiting_s: self.seconds("waiting_timeout")?,
            running_s: self.seconds("running_timeout")?,
        })
    }

    fn seconds(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let seconds = value.as_f64().filter(|seconds| *seconds > 0.0);
        seconds
            .map(Some)
            .ok_or_else(|| mismatch(name, &value, "a number of seconds above 0"))
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        self.take(name).map(|value| object(name, value)).transpose()
    }

    /// Refuses each of `names` that asks for something.
    pub(super) fn refuse(&mut self, names: &[&str]) -> Result<(), ApiError> {
        match names.iter().find(|name| {
            self.take(name)
                .is_some_and(|value| !asks_for_nothing(&value))
        }) {
            None => Ok(()),
            Some(name) => Err(ApiError::unsupported(name)),
        }
    }
}

pub(super) fn string(name: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(mismatch(name, &other, "a string")),
    }
}

pub(super) fn flag(name: &str, value: &Value) -> Result<bool, ApiError> {
    value
        .as_bool()
        .ok_or_else(|| mismatch(name, value, "true or false"))
}

pub(super) fn count(name: &str, value: &Value) -> Result<u32, ApiError> {
    let whole = value
        .as_u64()
        .or_else(|| whole_float(value)?.try_into().ok());
    whole
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| mismatch(name, value, "a whole number from 0 to 4294967295"))
}

pub(super) fn integer(name: &str, value: &Value) -> Result<i64, ApiError> {
    let number = value.as_i64().or_else(|| whole_float(value));
    number.ok_or_else(|| mismatch(name, value, "a whole number of 64 bits"))
}

pub(super) fn object(name: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(mismatch(name, &other, "an object")),
    }
}

/// A list of token ids.
pub(super) fn token_ids(name: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let token = |(index, value): (usize, &Value)| match value.as_u64().map(u32::try_from) {
        Some(Ok(token)) => Ok(token),
        _ => Err(mismatch(
            &format!("{name}[{index}]"),
            value,
            "a token id of 0 or more",
        )),
    };
    items.iter().enumerate().map(token).collect()
}

/// The error for a value of the wrong kind.
pub(super) fn mismatch(name: &str, value: &Value, wanted: &str) -> ApiError {
    ApiError::field(
        name,
        format!("{name} is {}, must be {wanted}", excerpt(value)),
    )
}

/// A whole number that was written as a float, which some clients do.
fn whole_float(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = value.as_f64()?;
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

/// The value as an error shows it: never longer than a line.
fn excerpt(value: &Value) -> String {
    const MAX_CHARS: usize = 48;
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.chars().nth(MAX_CHARS).is_some() => {
            format!("{:?}...", text.chars().take(MAX_CHARS).collect::<String>())
        }
        short => short.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: Value, expected: &str) {
        let Value::Object(map) = json!({ "best_of": value }) else {
            unreachable!()
        };
        let found = match Fields::new(map).count("best_of") {
            Ok(number) => format!("{number:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn counts_take_whole_numbers_and_name_what_is_not() {
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
            "best_of is a list of 2, must be a whole number from 0 to 4294967295",
        );
        let range = "must be a whole number from 0 to 4294967295";
        check(
            json!(1u64 << 32),
            &format!("best_of is 4294967296, {range}"),
        );
    }

    #[test]
    fn token_limits_are_clipped_and_never_negative() {
        let read = |value: Value| {
            let map = Map::from_iter([("max_tokens".to_owned(), value)]);
            Fields::new(map).token_limit("max_tokens")
        };
        let huge = serde_json::from_str("100000000000000000000").expect("a number");
        assert_eq!(read(huge), Ok(Some(u32::MAX)));
        assert_eq!(read(json!(1_000_000_000_000u64)), Ok(Some(u32::MAX)));
        assert_eq!(read(json!(7.0)), Ok(Some(7)));
        let text = "max_tokens is -1, must be a whole number of at least 0";
        assert_eq!(read(json!(-1)), Err(ApiError::field("max_tokens", text)));
    }

    #[test]
    fn what_asks_for_nothing_is_not_refused() {
        let Value::Object(map) =
            json!({"a": null, "b": false, "c": [], "d": "", "e": {}, "f": [null]})
        else {
            unreachable!()
        };
        let mut fields = Fields::new(map);
        assert_eq!(fields.refuse(&["a", "b", "c", "d", "e", "f", "g"]), Ok(()));
        fields.put("lora_path", json!("x"));
        assert_eq!(
            fields.refuse(&["a", "lora_path"]),
            Err(ApiError::unsupported("lora_path"))
        );
    }
}
