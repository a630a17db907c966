//! Tests which values a schema accepts: exact numbers, references, and `oneOf` with exclusive options.

use serde_json::Value;

use super::vocabularies::tiny;
use super::{accepts, compile, schema};

/// Whether a schema accepts each of the texts, or the error for the schema.
fn valid(written: &Value, texts: &[&str]) -> Result<Vec<bool>, String> {
    let grammar = compile(tiny().compiler(), schema(written.clone()));
    let grammar = grammar.map_err(|error| error.to_string())?;
    Ok(texts
        .iter()
        .map(|text| accepts(grammar.as_ref(), tiny(), text))
        .collect())
}

#[track_caller]
fn expect(written: &str, yes: &[&str], no: &[&str]) {
    let parsed: Value = serde_json::from_str(written).expect("it is JSON");
    for (texts, expected) in [(yes, true), (no, false)] {
        let valid = valid(&parsed, texts);
        let valid = valid.unwrap_or_else(|error| panic!("{written}: {error}"));
        assert_eq!(valid, vec![expected; texts.len()], "{written}: {texts:?}");
    }
}

#[track_caller]
fn refused(written: &str) -> String {
    let parsed: Value = serde_json::from_str(written).expect("it is JSON");
    valid(&parsed, &[]).expect_err(written)
}

#[test]
fn unsupported_numbers_are_rejected() {
    for schema in [
        r#"{"enum": [-9223372036854775808]}"#,
        r#"{"enum": [1, {"a": [-9223372036854775296]}]}"#,
        r#"{"type": "integer", "enum": [-1e300]}"#,
        r#"{"const": [[9007199254740993]]}"#,
        r#"{"const": {"a": 18446744073709551615}}"#,
        r#"{"properties": {"x": {"anyOf": [{"const": 1e19}, {"type": "null"}]}}}"#,
        r##"{"$defs": {"x": {"enum": [9223372036854775808]}}, "$ref": "#/$defs/x"}"##,
        r#"{"minimum": -9223372036854775808}"#,
        r#"{"type": "integer", "maximum": 9007199254740993}"#,
        r#"{"type": "integer", "exclusiveMinimum": 9007199254740992}"#,
        r#"{"type": "integer", "minimum": 9007199254740992, "exclusiveMinimum": true}"#,
    ] {
        let error = refused(schema);
        assert!(
            error.contains("2^53") && error.contains("#/"),
            "{schema}: {error}"
        );
    }
    for schema in [
        r#"{"multipleOf": 0}"#,
        r#"{"multipleOf": 1e-9}"#,
        r#"{"type": "integer", "multipleOf": 4294967295}"#,
        r#"{"allOf": [{"multipleOf": 100000}, {"multipleOf": 100000}]}"#,
        r#"{"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}"#,
        r#"{"type": "integer", "multipleOf": 999983}"#,
        r#"{"minimum": 5e-324}"#,
        r#"{"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}"#,
        r#"{"minLength": 4294967295}"#,
        r#"{"minItems": 1.5}"#,
        r#"{"maxProperties": -1}"#,
    ] {
        let error = refused(schema);
        assert!(!error.contains("compiler crashed"), "{schema}: {error}"); // the message for a panic
    }
}

#[test]
fn supported_numbers_are_matched_exactly() {
    expect(
        r#"{"enum": [9007199254740992, -9007199254740992, 0.1, -0.0]}"#,
        &["9007199254740992", "-9007199254740992", "0.1"],
        &["9007199254740991", "9007199254740993", "0.10"],
    );
    expect(
        r#"{"type": "integer", "minimum": 9007199254740990, "maximum": 9007199254740992}"#,
        &["9007199254740990", "9007199254740992"],
        &["9007199254740989", "9007199254740993"],
    );
    expect(
        r#"{"type": "integer", "exclusiveMinimum": -9007199254740991, "exclusiveMaximum": -9007199254740989}"#,
        &["-9007199254740990"],
        &["-9007199254740991", "-9007199254740989"],
    );
    expect(
        r#"{"type": "string", "minLength": 1.0, "maxLength": 1e30}"#,
        &["\"a\""],
        &["\"\""],
    );
    expect(
        r#"{"type": "integer", "multipleOf": 400000000}"#,
        &["800000000"],
        &["400000001"],
    );
    expect(
        r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}"#,
        &["0.5", "0.25", "0.000001"],
        &["0", "-0.1", "0.0", "0.51"],
    );
    expect(
        r#"{"minimum": -0.5, "exclusiveMaximum": 0, "type": "number"}"#,
        &["-0.5"],
        &["0", "-0", "-0.0"],
    );
    expect(
        r#"{"type": "number", "multipleOf": 0.01}"#,
        &["1.25", "-3"],
        &["1.255"],
    );
}

#[test]
fn references_are_json_pointers() {
    let defs = r#""$defs": {"a/b": {"type": "integer"}, "c~d": {"type": "boolean"}, "Foo<string>": {"type": "null"},
        "~1": {"const": "x"}, "a b": {"const": "y"}}"#;
    for (reference, yes) in [
        ("#/$defs/a~1b", "7"),
        ("#/$defs/c~0d", "true"),
        ("#/$defs/Foo%3Cstring%3E", "null"),
        ("#/$defs/Foo<string>", "null"),
        ("#/$defs/~01", "\"x\""),
        ("#/%24defs/a%20b", "\"y\""),
        ("#/$defs/a b", "\"y\""),
    ] {
        expect(
            &format!("{{\"$ref\": \"{reference}\", {defs}}}"),
            &[yes],
            &["\"z\"", "1.5"],
        );
    }
    let wanted = ["7", "[7]", "[[7]]"];
    expect(
        r##"{"components": {"schemas": {"Tree": {"anyOf": [{"type": "integer"},
            {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}}]}}}, "$ref": "#/components/schemas/Tree"}"##,
        &wanted,
        &["\"x\""],
    );
    expect(
        r##"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
            "required": ["b"], "additionalProperties": false}"##,
        &["{\"b\":7}"],
        &["{\"b\":\"x\"}"],
    );
    expect(
        r##"{"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}"##,
        &wanted,
        &["\"x\""],
    );
}

#[test]
fn references_by_name_are_resolved_or_rejected_with_a_reason() {
    expect(
        r##"{"$ref": "#number", "$defs": {"a": {"$anchor": "number", "type": "integer"}}}"##,
        &["7"],
        &["\"x\""],
    );
    expect(
        r##"{"$id": "https://example.com/root.json", "$ref": "item.json#/$defs/x",
            "$defs": {"item": {"$id": "item.json", "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"type": "integer"}}},
            "y": {"type": "boolean"}}}"##,
        &["7"],
        &["true"],
    );
    for reference in [
        "https://example.com/other.json",
        "other.json",
        "#nothing",
        "#/$defs/nothing",
        "#/%ff",
    ] {
        let error = refused(&format!("{{\"$ref\": \"{reference}\"}}"));
        assert!(
            error.contains(reference) && error.contains("#/$ref"),
            "{error}"
        );
        assert!(!error.contains("feature"), "{error}"); // llguidance's message names a feature of its build
    }
}

#[test]
fn one_of_is_accepted_if_its_options_exclude_each_other() {
    let pets = r##""$defs": {
        "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "n": {"type": "integer"}}, "required": ["kind"]},
        "Dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]},
        "Pet": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}}"##;
    let (cat, wolf) = ("{\"kind\":\"cat\",\"n\":1}", "{\"kind\":\"wolf\"}");
    expect(
        &format!(
            "{{\"oneOf\": [{{\"$ref\": \"#/$defs/Cat\"}}, {{\"$ref\": \"#/$defs/Dog\"}}], {pets}}}"
        ),
        &[cat, wolf],
        &["{\"kind\":\"cow\"}", "null"],
    );
    expect(
        &format!("{{\"oneOf\": [{{\"$ref\": \"#/$defs/Pet\"}}, {{\"type\": \"null\"}}], {pets}}}"),
        &[cat, wolf, "null"],
        &["{\"kind\":\"cow\"}"],
    );
    expect(
        r#"{"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 5}, {"type": "string"}]}"#,
        &["3", "5", "\"x\""],
        &["4"],
    );
    let error = refused(
        r##"{"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {"a": {"type": "integer"}, "b": {"type": "number"}}}"##,
    );
    assert!(
        error.contains("exclude each other") && !error.contains("coerce"), // an option of llguidance
        "{error}"
    );
}
