//! JSON schemas of every kind that grammars support.

use serde_json::{Value, json};

pub fn schemas() -> Vec<Value> {
    let mut all = values();
    all.extend(strings());
    all.extend(arrays());
    all.extend(objects());
    all.extend(combinations());
    all.extend(references());
    all.extend(applications());
    all
}

fn values() -> Vec<Value> {
    vec![
        json!({}),
        json!(true),
        json!({"type": "null"}),
        json!({"type": "boolean"}),
        json!({"type": "integer"}),
        json!({"type": "integer", "minimum": -3, "maximum": 120}),
        json!({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000, "multipleOf": 7}),
        json!({"type": "number", "minimum": 0.5, "maximum": 2.25}),
        json!({"type": "number", "exclusiveMaximum": -1}),
        json!({"type": ["integer", "null"]}),
        json!({"const": {"a": [1, "two", null, true]}}),
        json!({"enum": ["red", "green", 3, null, {"x": 1}]}),
        json!({"const": "a \"quoted\" \\ text\n"}),
    ]
}

fn strings() -> Vec<Value> {
    let mut all = vec![
        json!({"type": "string"}),
        json!({"type": "string", "minLength": 2, "maxLength": 5}),
        json!({"type": "string", "maxLength": 0}),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"}),
        json!({"type": "string", "pattern": "[0-9a-f]"}),
        json!({"type": "string", "pattern": "^\\d+(\\.\\d+)?$", "maxLength": 12}),
        json!({"type": "string", "pattern": "^\\w+\\s\\w+$"}),
        json!({"type": "string", "pattern": "^[äöü日本]{1,4}$"}),
        json!({"type": "string", "pattern": "^[^\"\\\\]{1,8}$"}),
        json!({"type": "string", "pattern": "^[^\"]{0,6}$"}),
        json!({"type": "string", "pattern": "^[^\\\\/:*?\"<>|]{1,8}$"}),
        json!({"type": "string", "pattern": "(^|,)[a-z]{2}(,|$)", "maxLength": 8}),
        json!({"enum": ["日本語", "\u{1f600}", "naïve"]}),
    ];
    let formats = [
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    ];
    all.extend(formats.map(|format| json!({"type": "string", "format": format})));
    all
}

fn arrays() -> Vec<Value> {
    vec![
        json!({"type": "array"}),
        json!({"type": "array", "items": {"type": "integer"}}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
        json!({"type": "array", "maxItems": 0}),
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": false}),
        json!({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
            "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": {"type": "null"}}),
    ]
}

fn objects() -> Vec<Value> {
    vec![
        json!({"type": "object"}),
        json!({"type": "object", "additionalProperties": false}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
            "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "string"}, "^n[0-9]+$": {"type": "number"}},
            "additionalProperties": false}),
        json!({"type": "object", "properties": {"x-a": {"maxLength": 3}},
            "patternProperties": {"^x-": {"type": "string"}}, "required": ["x-a"]}),
        json!({"type": "object", "minProperties": 1, "maxProperties": 1,
            "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": false}),
        json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "null"}}),
        json!({"type": "object", "properties": {"": {"const": 1}, "a b": {"const": 2}, "\"q\"\\": {"const": 3},
            "ключ": {"const": 4}}, "required": ["", "\"q\"\\", "ключ"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"never": false, "a": {"type": "null"}}, "required": ["a"]}),
    ]
}

fn combinations() -> Vec<Value> {
    vec![
        json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]}),
        json!({"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "array", "items": {"type": "null"}}]}),
        json!({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind", "lives"]},
            {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]}]}),
        json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]}),
        json!({"allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]}]}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]},
            {"properties": {"b": {"type": "null"}}, "required": ["b"]}]}),
        json!({"type": "string", "enum": ["a", "bb", "ccc"], "minLength": 2}),
    ]
}

fn references() -> Vec<Value> {
    vec![
        json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
            "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["value", "next"], "additionalProperties": false}}}),
        json!({"type": "object", "properties": {"name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#"}}}, "required": ["name"],
            "additionalProperties": false}),
        json!({"definitions": {"id": {"type": "integer", "minimum": 1}}, "type": "array",
            "items": {"$ref": "#/definitions/id"}, "minItems": 1}),
        json!({"$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "additionalProperties": false},
            "b": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
        json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 4},
            "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"]}),
        json!({"$defs": {"Cat/1": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
            "required": ["kind"], "additionalProperties": false}, "Dog<x>": {"type": "object", "properties": {
            "kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"], "additionalProperties": false}},
            "type": "array", "items": {"oneOf": [{"$ref": "#/$defs/Cat~11"}, {"$ref": "#/$defs/Dog%3Cx%3E"},
            {"type": "null"}]}, "minItems": 1, "maxItems": 3}),
    ]
}

fn applications() -> Vec<Value> {
    vec![
        json!({"title": "Person", "type": "object", "properties": {
            "name": {"type": "string", "description": "full name", "minLength": 1, "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
            "address": {"type": "object", "properties": {
                "street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                "required": ["street", "zip"], "additionalProperties": false}},
            "required": ["name", "age", "address"], "additionalProperties": false}),
        json!({"type": "object", "properties": {
            "steps": {"type": "array", "items": {"type": "object", "properties": {
                "explanation": {"type": "string"}, "output": {"type": "string"}},
                "required": ["explanation", "output"], "additionalProperties": false}},
            "final_answer": {"type": "string"}}, "required": ["steps", "final_answer"],
            "additionalProperties": false}),
        json!({"type": "object", "properties": {
            "unit": {"anyOf": [{"type": "string", "enum": ["c", "f"]}, {"type": "null"}]},
            "at": {"type": "array", "prefixItems": [{"type": "number", "minimum": -90, "maximum": 90},
                {"type": "number", "minimum": -180, "maximum": 180}], "minItems": 2, "maxItems": 2}},
            "required": ["unit", "at"]}),
        json!({"type": "array", "minItems": 1, "maxItems": 3, "items": {"oneOf": [
            {"type": "object", "properties": {"op": {"const": "add"}, "path": {"type": "string"}, "value": {}},
                "required": ["op", "path", "value"], "additionalProperties": false},
            {"type": "object", "properties": {"op": {"const": "remove"}, "path": {"type": "string"}},
                "required": ["op", "path"], "additionalProperties": false}]}}),
        json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "object",
            "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}}}),
    ]
}
