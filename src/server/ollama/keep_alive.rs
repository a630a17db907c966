//! Reads `keep_alive`. The model is never unloaded, so only a zero shows in an answer.

use crate::error::ApiError;
use crate::fields::Fields;
use souffleur_base::field::{Field, Shallow};

const NAME: &str = "keep_alive";
const WANTED: &str = "a number of seconds, or a duration such as \"5m\"";
/// Units of durations. No unit is the beginning of a later one.
const UNITS: [&str; 7] = ["ns", "us", "µs", "ms", "s", "m", "h"];

/// Returns whether a call asks for the model to be unloaded at once.
pub(super) fn is_zero(fields: &mut Fields) -> Result<bool, ApiError> {
    let Some(value) = fields.take(NAME)? else {
        return Ok(false);
    };
    let is_zero = match &value {
        Shallow::Text(text) => is_zero_duration(text),
        value => value.as_f64().map(|seconds| seconds == 0.0),
    };
    is_zero.ok_or_else(|| Field::new(NAME, &value).must_be(WANTED).into())
}

/// Reads a number of seconds, or numbers with units as in `1h30m`; `None` for any other text.
fn is_zero_duration(text: &str) -> Option<bool> {
    let number = text.parse::<f64>().ok();
    if let Some(seconds) = number.filter(|seconds| seconds.is_finite()) {
        return Some(seconds == 0.0);
    }
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut is_zero = true;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(end);
        is_zero &= number.parse::<f64>().ok()? == 0.0;
        rest = UNITS.iter().find_map(|known| unit.strip_prefix(known))?;
    }
    Some(is_zero)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_and_durations_are_read() {
        let read = |value: Value| is_zero(&mut Fields::of(&json!({ "keep_alive": value })));
        for (value, expected) in [
            (json!(null), false),
            (json!(0), true),
            (json!(0.0), true),
            (json!(-1), false),
            (json!(300), false),
            (json!("0"), true),
            (json!("0s"), true),
            (json!("0h0m"), true),
            (json!("-1s"), false),
            (json!("5m"), false),
            (json!("1h30m"), false),
            (json!("1.5ms"), false),
            (json!("2µs"), false),
        ] {
            assert_eq!(read(value.clone()), Ok(expected), "{value}");
        }
        for value in [
            json!("soon"),
            json!(""),
            json!("m"),
            json!("5 m"),
            json!("inf"),
            json!([5]),
        ] {
            let error = read(value.clone()).expect_err("is refused").to_string();
            assert!(
                error.starts_with("keep_alive is ") && error.contains("\"5m\""),
                "{error}"
            );
        }
    }
}
