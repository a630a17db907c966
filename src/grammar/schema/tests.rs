//! Tests which JSON schemas of requests are accepted, and the errors for others.

use serde_json::json;

use super::*;

fn check(schema: &Value) -> Result<Value, String> {
    let limits = GrammarLimits::default();
    checked("json_schema", schema, Objects::AsWritten, &limits).map_err(|error| error.to_string())
}

#[test]
fn unsupported_keywords_are_rejected_with_their_place() {
    let schema = json!({"type": "object", "properties": {"a/b": {"items": [{"not": {}}]}}});
    let error = check(&schema).expect_err("`not` is not supported");
    assert!(error.contains("#/properties/a~1b/items/0/not"), "{error}");
    assert!(error.contains("\"not\""), "{error}");
    for (name, value) in [
        ("if", json!({})),
        ("contains", json!({"type": "null"})),
        ("uniqueItems", json!(true)),
        ("dependentRequired", json!({})),
        ("propertyNames", json!({})),
        ("unevaluatedProperties", json!(false)),
        ("format", json!("regex")),
        ("pattern", json!("(?=a)b")),
        ("minProperties", json!(2)),
    ] {
        let error = check(&json!({ name: value })).expect_err("it is not supported");
        assert!(error.contains(&format!("#/{name}")), "{error}");
    }
}

#[test]
fn property_names_are_not_keywords() {
    let schema = json!({"properties": {"not": {"type": "null"}}, "const": {"if": 1}});
    assert_eq!(check(&schema), Ok(schema));
}

#[test]
fn keywords_without_effect_are_removed() {
    let schema = json!({
        "title": "t", "x-guidance": {"lenient": true}, "uniqueItems": false, "format": "password",
        "properties": {"a": {"x-guidance": {}, "description": "d", "type": "string"}},
    });
    let kept = json!({"properties": {"a": {"type": "string"}}});
    assert_eq!(check(&schema), Ok(kept));
    assert_eq!(check(&json!(true)), Ok(json!({})));
    assert!(check(&json!(false)).is_err());
    assert!(check(&json!([])).is_err());
}

#[test]
fn strict_mode_closes_objects() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "object", "additionalProperties": true}, "b": {"type": "string"}},
        "$defs": {"c": {"properties": {}}},
    });
    let closed = checked("f", &schema, Objects::Closed, &GrammarLimits::default());
    let closed = closed.expect("it is supported");
    assert_eq!(closed["additionalProperties"], json!(false));
    assert_eq!(
        closed["properties"]["a"]["additionalProperties"],
        json!(true)
    );
    assert_eq!(closed["properties"]["b"].get("additionalProperties"), None);
    assert_eq!(closed["$defs"]["c"]["additionalProperties"], json!(false));
}

#[test]
fn size_and_depth_are_bounded() {
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"items": deep});
    }
    let error = check(&deep).expect_err("it is too deep");
    assert!(error.contains("nested"), "{error}");
    let names: Vec<String> = (0..30_000).map(|name| name.to_string()).collect();
    let error = check(&json!({ "enum": names })).expect_err("it is too large");
    assert!(error.contains("values"), "{error}");
}

#[test]
fn references_lead_to_definitions_wherever_they_are_used() {
    let tree =
        json!({"properties": {"child": {"$ref": "#"}, "a~b": {"$ref": "#/properties/child"}}});
    let kept = check(&tree).expect("it is supported");
    assert_eq!(kept["properties"]["child"]["$ref"], "#/$defs/root");
    assert_eq!(kept["properties"]["a~b"]["$ref"], "#/$defs/child");
    assert_eq!(kept["$defs"]["root"]["properties"], kept["properties"]);
    assert_eq!(kept["$defs"]["child"]["$ref"], "#/$defs/root");
}

#[test]
fn references_of_a_named_part_may_mean_the_whole_schema() {
    let part = json!({"$id": "/properties/a", "$ref": "#/definitions/x"});
    let schema = json!({"properties": {"a": part}, "definitions": {"x": {"type": "null"}}});
    let kept = check(&schema).expect("it is supported");
    assert_eq!(kept["properties"]["a"]["$ref"], "#/definitions/x");
    let elsewhere = json!({
        "$defs": {"a": {"$id": "other.json"}, "x": {"type": "null"}}, "$ref": "other.json#/$defs/x",
    });
    let error = check(&elsewhere).expect_err("the other document has none");
    assert!(error.contains("names nothing"), "{error}");
}

#[test]
fn long_names_are_not_copied_for_each_value_below() {
    let long = "k".repeat(1 << 20);
    let schema = json!({"properties": {(&long): {"anyOf": vec![json!({}); 15_000]}}});
    assert_eq!(check(&schema), Ok(schema));
    let parts: Vec<Value> = (0..15_000)
        .map(|at| json!({"$id": at.to_string()}))
        .collect();
    for id in [format!("{long}/"), format!("{}/", &long[..900])] {
        let schema = json!({"$id": id, "$ref": "#/x", "x": {"type": "null"}, "y": parts});
        let kept = check(&schema).expect("it is supported");
        assert_eq!(kept["$ref"], "#/$defs/x");
    }
}

#[test]
fn references_with_the_same_last_part_get_numbered_names() {
    let targets = (0..8_000).map(|at: usize| (at.to_string(), json!({"a": {}})));
    let targets: Map<String, Value> = targets.collect();
    let references = (0..8_000).map(|at| json!({"$ref": format!("#/x/{at}/a")}));
    let references: Vec<Value> = references.collect();
    let kept = check(&json!({"anyOf": references, "x": targets})).expect("it is supported");
    assert_eq!(kept["anyOf"][0]["$ref"], "#/$defs/a");
    assert_eq!(kept["anyOf"][7_999]["$ref"], "#/$defs/a-8000");
    assert_eq!(kept["$defs"].as_object().map(Map::len), Some(8_000));
}

#[test]
fn branches_of_many_schemas_are_counted_before_they_are_copied() {
    let mut all = vec![json!({"pattern": "a"}), json!({"pattern": "b"})];
    all.resize(9_000, json!({}));
    let error = check(&json!({"allOf": all, "anyOf": vec![json!({}); 9_000]}));
    let error = error.expect_err("it exceeds the limit");
    assert!(
        error.contains("contain more than 4000000 schemas"),
        "{error}"
    );
}

#[test]
fn exclusive_options_of_one_of_become_any_of() {
    let options = json!([{"type": "null"}, {"type": "string"}]);
    let one_of = json!({ "oneOf": options });
    let any_of = json!({ "anyOf": options });
    for name in ["enum", "const", "properties", "a"] {
        let kept = check(&json!({"properties": {name: one_of}}));
        assert_eq!(kept, Ok(json!({"properties": {name: any_of}})), "{name}");
    }
    let nested = |keyword: &str, items: &Value| {
        let array = json!({"type": "array", "items": items});
        json!({keyword: [array, {"type": "object"}]})
    };
    let kept = check(&nested("oneOf", &one_of));
    assert_eq!(kept, Ok(nested("anyOf", &any_of)));
    let constant = json!({ "const": one_of });
    assert_eq!(check(&constant), Ok(constant));
}

#[test]
fn constants_are_compared_within_a_limit_of_steps() {
    let words = |from: usize, n: usize| -> Vec<String> {
        let words = from..from + n;
        words.map(|word| format!("word {word}")).collect()
    };
    for (n, is_any_of) in [(100, true), (1_000, true), (8_000, false)] {
        let options = [json!({"enum": words(0, n)}), json!({"enum": words(n, n)})];
        let kept = check(&json!({ "oneOf": options })).expect("it is supported");
        assert_eq!(kept.get("anyOf").is_some(), is_any_of, "{n}");
    }
    let all: Vec<Value> = vec![json!(false); 5_000];
    let options = vec![json!({"$ref": "#/$defs/x"}); 5_000];
    let never = json!({"oneOf": options, "$defs": {"x": {"allOf": all}}});
    let kept = check(&never).expect("it is supported");
    assert!(kept.get("oneOf").is_some());
}

#[test]
fn only_bounds_that_exclude_no_double_are_ignored() {
    for bounds in [
        json!({"minimum": f64::MIN, "maximum": f64::MAX}),
        json!({"exclusiveMinimum": f64::MIN, "exclusiveMaximum": f64::MAX}),
        json!({"minimum": f64::MIN, "exclusiveMinimum": true}),
        json!({"maximum": f64::MAX, "exclusiveMaximum": true}),
    ] {
        assert_eq!(check(&bounds), Ok(json!({})), "{bounds}");
    }
    for bounds in [
        json!({"minimum": f64::MAX}),
        json!({"exclusiveMaximum": f64::MIN}),
        json!({"minimum": -1e300}),
        json!({"const": f64::MAX}),
    ] {
        let error = check(&bounds).expect_err("it is not exact");
        assert!(error.contains("2^53"), "{error}");
    }
}
