//! Tests of the request field parsers.

use std::fmt::Debug;

use serde_json::{Value, json};

use super::*;

fn shallow(value: Value) -> Shallow {
    let keep = Keep(8);
    let text = value.to_string();
    let read = serde::de::DeserializeSeed::deserialize(
        keep,
        &mut serde_json::Deserializer::from_str(&text),
    );
    read.expect("the text is JSON")
}

/// Reads `value` as the field `x`; `expected` is the result or the error's reason.
#[track_caller]
fn check<T: Debug>(
    value: Value,
    read: impl Fn(Field<'_>) -> Result<T, FieldError>,
    expected: &str,
) {
    let value = shallow(value);
    let found = match read(Field::new("x", &value)) {
        Ok(read) => format!("{read:?}"),
        Err(error) => {
            assert_eq!((error.field(), error.code()), ("x", "invalid_request"));
            error.to_string()
        }
    };
    assert_eq!(found, expected);
}

#[test]
fn integers_have_the_bounds_of_their_type_and_may_be_floats() {
    let small = |field: Field<'_>| field.integer::<u32>();
    check(json!(16), small, "16");
    check(json!(16.0), small, "16");
    let range = "must be a whole number from 0 to 4294967295";
    check(json!(-5), small, &format!("x is -5, {range}"));
    check(json!(1.5), small, &format!("x is 1.5, {range}"));
    check(json!("7"), small, &format!("x is \"7\", {range}"));
    check(
        json!(1u64 << 32),
        small,
        &format!("x is 4294967296, {range}"),
    );
    let large = |field: Field<'_>| field.integer::<i64>();
    check(json!(i64::MIN), large, "-9223372036854775808");
    check(json!(MAX_EXACT), large, "9007199254740992");
    check(
        json!(1e16),
        large,
        "x is 1e+16, must be a 64-bit whole number",
    );
    check(
        json!(null),
        |field| field.positive(),
        "x is null, must be a whole number of at least 1",
    );
}

#[test]
fn limits_and_seeds_out_of_range_are_converted_or_rejected() {
    check(json!(1u64 << 40), |field| field.token_limit(), "4294967295");
    check(
        json!(-1),
        |field| field.token_limit(),
        "x is -1, must be a whole number of at least 0",
    );
    check(json!(1u64 << 40), |field| field.top_k(), "-1");
    check(json!(-1), |field| field.seed(), "18446744073709551615");
    check(
        json!(u64::MAX),
        |field| field.seed(),
        "18446744073709551615",
    );
    check(json!(0.5), |field| field.seconds(), "0.5");
    check(
        json!(0),
        |field| field.seconds(),
        "x is 0, must be a number of seconds above 0",
    );
}

#[test]
fn limits_count_all_entries_of_lists_and_maps() {
    let list = |field: Field<'_>| field.list("a list of ids", 8, "ids").map(<[_]>::len);
    check(json!([1, 2]), list, "2");
    check(
        json!(vec![0; 9]),
        list,
        "x has 9 ids, limit is 8: send fewer",
    );
    check(json!({}), list, "x is an object, must be a list of ids");
    let map = |field: Field<'_>| field.map("a map", 1, "tokens").map(<[_]>::len);
    check(
        json!({"a": 1, "b": 2}),
        map,
        "x has 2 tokens, limit is 1: send fewer",
    );
    check(json!([1]), map, "x is a list of 1 item, must be a map");
}

#[test]
fn long_values_are_truncated_in_errors() {
    let error = Field::new("x", &shallow(json!("y".repeat(100_000)))).must_be("short");
    assert!(error.to_string().len() < 100, "{error}");
    let error = check_bytes("x", &"y".repeat(9), 8).expect_err("the text is too long");
    assert_eq!(
        error,
        FieldError::new("x", "x has 9 bytes, limit is 8: shorten it")
    );
}
