//! Parsers of request fields. The server uses them for HTTP bodies and WebSocket messages; programs use them when they
//! deserialise `SamplingParams` with serde.
//!
//! An invalid value is reported as a [`FieldError`]: the field, and a sentence that names the value, the limit and the
//! remedy. Lists and objects are stored only up to the length that their field allows.

mod shallow;
mod tree;

use std::ops::RangeInclusive;

pub use shallow::{Cut, Keep, ReadTokenIds, Shallow, TokenIds};
pub use tree::{Tree, count_values};

use crate::error::FieldError;

/// 2^53: f64 represents all integers up to it exactly.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
const TOKEN_ID: &str = "a token id from 0 to 4294967295";

/// A field's value and its name in errors.
#[derive(Clone, Copy)]
pub struct Field<'a> {
    name: &'a str,
    value: &'a Shallow,
}

impl<'a> Field<'a> {
    pub fn new(name: &'a str, value: &'a Shallow) -> Self {
        Self { name, value }
    }

    pub fn must_be(self, wanted: &str) -> FieldError {
        let Self { name, value } = self;
        FieldError::new(name, format!("{name} is {value}, must be {wanted}"))
    }

    pub fn boolean(self) -> Result<bool, FieldError> {
        self.value
            .as_bool()
            .ok_or_else(|| self.must_be("true or false"))
    }

    /// Accepts integers written as floats (`16.0`), which some clients send.
    pub fn integer<T: Integer>(self) -> Result<T, FieldError> {
        let number = self.whole().and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.must_be(T::RANGE))
    }

    /// At least 1, without an upper bound.
    pub fn positive(self) -> Result<i64, FieldError> {
        self.whole()
            .filter(|number| *number > 0)
            .ok_or_else(|| self.must_be("a whole number of at least 1"))
    }

    pub fn float(self) -> Result<f32, FieldError> {
        let number = self.value.as_f64().map(|number| number as f32);
        number.ok_or_else(|| self.must_be("a number"))
    }

    pub fn seconds(self) -> Result<f64, FieldError> {
        let seconds = self.value.as_f64().filter(|seconds| *seconds > 0.0);
        seconds.ok_or_else(|| self.must_be("a number of seconds above 0"))
    }

    /// Clips larger numbers to `u32::MAX`: no context is longer.
    pub fn token_limit(self) -> Result<u32, FieldError> {
        let whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0;
        let number = self.value.as_f64().filter(whole);
        number
            .map(|number| number as u32)
            .ok_or_else(|| self.must_be("a whole number of at least 0"))
    }

    /// A number above `i32::MAX` means the whole vocabulary, as `-1` does.
    pub fn top_k(self) -> Result<i32, FieldError> {
        const ALL: i32 = -1;
        match self.value.as_f64() {
            Some(number) if number > f64::from(i32::MAX) && number.fract() == 0.0 => Ok(ALL),
            _ => self.integer(),
        }
    }

    /// Negative seeds are reinterpreted as u64.
    pub fn seed(self) -> Result<u64, FieldError> {
        let negative = || self.whole().map(|number| number as u64);
        let seed = self.value.as_u64().or_else(negative);
        seed.ok_or_else(|| self.must_be(i64::RANGE))
    }

    pub fn token_id(self) -> Result<u32, FieldError> {
        let number = self.whole().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| self.must_be(TOKEN_ID))
    }

    /// At most `limit` items, named `unit` in errors; `wanted` describes the list.
    pub fn list(self, wanted: &str, limit: usize, unit: &str) -> Result<&'a [Shallow], FieldError> {
        let Shallow::List { items, len, .. } = self.value else {
            return Err(self.must_be(wanted));
        };
        check_count(self.name, *len, limit, unit)?;
        Ok(items)
    }

    /// At most `limit` entries, named `unit` in errors; `wanted` describes the map.
    pub fn map(
        self,
        wanted: &str,
        limit: usize,
        unit: &str,
    ) -> Result<&'a [(String, Shallow)], FieldError> {
        let Shallow::Map { entries, len } = self.value else {
            return Err(self.must_be(wanted));
        };
        check_count(self.name, *len, limit, unit)?;
        Ok(entries)
    }

    fn whole(self) -> Option<i64> {
        let from_float = |number: f64| {
            (number.fract() == 0.0 && number.abs() <= MAX_EXACT).then_some(number as i64)
        };
        let value = self.value;
        value.as_i64().or_else(|| from_float(value.as_f64()?))
    }
}

pub trait Integer: TryFrom<i64> {
    /// The range in error messages.
    const RANGE: &str;
    const BOUNDS: RangeInclusive<i64>;
}

impl Integer for u32 {
    const RANGE: &str = "a whole number from 0 to 4294967295";
    const BOUNDS: RangeInclusive<i64> = 0..=u32::MAX as i64;
}

impl Integer for i32 {
    const RANGE: &str = "a whole number from -2147483648 to 2147483647";
    const BOUNDS: RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;
}

impl Integer for i64 {
    const RANGE: &str = "a 64-bit whole number";
    const BOUNDS: RangeInclusive<i64> = i64::MIN..=i64::MAX;
}

/// Moves the string out of `value`, because a copy could be as large as the request.
pub fn text(name: &str, value: Shallow) -> Result<String, FieldError> {
    match value {
        Shallow::Text(text) => Ok(text),
        other => Err(Field::new(name, &other).must_be("a string")),
    }
}

/// Returns an error for the first item that is not a token id.
pub fn token_ids(name: &str, read: TokenIds) -> Result<Vec<u32>, FieldError> {
    match read {
        TokenIds::Ids(ids) => Ok(ids),
        TokenIds::Bad { index, found } => {
            Err(Field::new(&format!("{name}[{index}]"), &found).must_be(TOKEN_ID))
        }
    }
}

/// Rejects too many entries; `count` includes entries that were not stored.
pub fn check_count(name: &str, count: usize, limit: usize, unit: &str) -> Result<(), FieldError> {
    if count <= limit {
        Ok(())
    } else {
        Err(FieldError::new(
            name,
            format!("{name} has {count} {unit}, limit is {limit}: send fewer"),
        ))
    }
}

pub fn check_bytes(name: &str, text: &str, limit: usize) -> Result<(), FieldError> {
    let bytes = text.len();
    if bytes <= limit {
        Ok(())
    } else {
        Err(FieldError::new(
            name,
            format!("{name} has {bytes} bytes, limit is {limit}: shorten it"),
        ))
    }
}

#[cfg(test)]
mod tests;
