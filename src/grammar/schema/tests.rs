use serde_json::json;

use super::*;

fn check(schema: &Value) -> Result<Value, String> {
    let limits = GrammarLimits::default();
    checked("json_schema", schema, Objects::AsWritten, &limits).map_err(|error| error.to_string())
}

#[test]
fn unsupported_keywords_are_told_with_their_place() {
    let schema = json!({"type": "object", "properties": {"a/b": {"items": [{"not": {}}]}}});
    let told = check(&schema).expect_err("`not` is not supported");
    assert!(told.contains("#/properties/a~1b/items/0/not"), "{told}");
    assert!(told.contains("\"not\""), "{told}");
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
        let told = check(&json!({ name: value })).expect_err("it is not supported");
        assert!(told.contains(&format!("#/{name}")), "{told}");
    }
}

#[test]
fn names_of_properties_are_no_keywords() {
    let schema = json!({"properties": {"not": {"type": "null"}}, "const": {"if": 1}});
    assert_eq!(check(&schema), Ok(schema));
}

#[test]
fn what_says_nothing_is_left_out() {
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
    let told = check(&deep).expect_err("it is too deep");
    assert!(told.contains("nested"), "{told}");
    let names: Vec<String> = (0..30_000).map(|name| name.to_string()).collect();
    let told = check(&json!({ "enum": names })).expect_err("it is too large");
    assert!(told.contains("values"), "{told}");
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
