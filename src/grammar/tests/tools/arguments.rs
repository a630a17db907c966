//! Tests that tool call arguments are valid, and written in each model family's notation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{compile, grammar, seat, wish};
use crate::GrammarWish;
use crate::tests::accepts;
use crate::tests::vocabularies::{large, tiny};
use crate::tests::walk::walk;
use souffleur_state::output::{Tool, ToolChoice, ToolFormat, ToolUse};

#[test]
fn walked_calls_have_valid_arguments() {
    let parameters = seat(true).parameters.expect("it has parameters");
    let validator = jsonschema::validator_for(&parameters).expect("it is a schema");
    for (format, open, close) in [
        (ToolFormat::Hermes, "<tool_call>\n", "\n</tool_call>"),
        (ToolFormat::Llama3, "", ""),
    ] {
        for vocabulary in [large(), tiny()] {
            let named = ToolChoice::Named("seat".to_owned());
            let grammar = grammar(vocabulary, &wish(named, format, true, false));
            for seed in 0..10 {
                let walk = walk(grammar.as_ref(), vocabulary, seed);
                let text = walk.text.trim_start_matches("<|python_tag|>");
                let inner = text
                    .strip_prefix(open)
                    .and_then(|text| text.strip_suffix(close));
                let call: Value =
                    serde_json::from_str(inner.expect("both tags")).expect("it is JSON");
                let arguments = call
                    .get("arguments")
                    .or(call.get("parameters"))
                    .expect("it has arguments");
                assert!(validator.is_valid(arguments), "{text}");
                assert_eq!(call["name"], "seat");
            }
        }
    }
}

#[test]
fn walked_parameters_in_xml_follow_their_types() {
    let named = ToolChoice::Named("seat".to_owned());
    for vocabulary in [large(), tiny()] {
        let grammar = grammar(
            vocabulary,
            &wish(named.clone(), ToolFormat::Qwen3Coder, true, false),
        );
        for seed in 0..10 {
            let text = walk(grammar.as_ref(), vocabulary, seed).text;
            let inner = text
                .strip_prefix("<tool_call>\n<function=seat>\n")
                .expect("the prefix");
            let inner = inner
                .strip_suffix("</function>\n</tool_call>")
                .expect("the suffix");
            for parameter in inner
                .split("</parameter>\n")
                .filter(|rest| !rest.is_empty())
            {
                let parameter = parameter.strip_prefix("<parameter=").expect("the prefix");
                let (name, value) = parameter.split_once(">\n").expect("a name");
                let value = value.strip_suffix('\n').expect("the suffix");
                match name {
                    "row" => assert!((1..=99).contains(&value.parse::<u32>().expect("a row"))),
                    "kind" => assert!(["aisle", "window"].contains(&value), "{value}"),
                    "who" => assert!(value.chars().count() <= 20, "{value}"),
                    "near" => assert!(serde_json::from_str::<Vec<i64>>(value).is_ok(), "{value}"),
                    _ => assert!(["true", "false"].contains(&value), "{value}"),
                }
            }
        }
    }
}

fn one_call(schema: Value, format: ToolFormat) -> GrammarWish {
    let tool = Tool {
        name: "f".to_owned(),
        description: None,
        parameters: Some(schema),
        strict: true,
    };
    GrammarWish {
        tools: Some(Arc::new(ToolUse {
            tools: vec![tool],
            choice: ToolChoice::Required,
            parallel: false,
        })),
        tool_format: Some(format),
        ..GrammarWish::default()
    }
}

/// The form in which Gemma 4 writes a call of `f`.
fn braced(arguments: &str) -> String {
    format!("<|tool_call>call:f{{{arguments}}}<tool_call|>")
}

#[test]
fn alternatives_may_have_annotations() {
    let schema = json!({"type": "object", "properties": {"a": {
        "title": "A", "description": "One of three.", "default": null, "examples": [true], "x-order": 1,
        "anyOf": [
            {"type": "boolean", "description": "Either."},
            {"enum": ["x", null], "title": "Named"},
            {"type": "array", "items": {"const": true, "description": "Always."}, "minItems": 1}
        ]}}, "required": ["a"]});
    let pythonic = |value: &str| format!("[f(a={value})]");
    let of_braces = |value: &str| braced(&format!("a:{value}"));
    let python = grammar(tiny(), &one_call(schema.clone(), ToolFormat::Pythonic));
    let gemma = grammar(tiny(), &one_call(schema, ToolFormat::Gemma4));
    for (of_python, of_gemma) in [
        ("True", "true"),
        ("\"x\"", "<|\"|>x<|\"|>"),
        ("None", "null"),
        ("[True]", "[true]"),
        ("[True, True]", "[true,true]"),
    ] {
        let text = pythonic(of_python);
        assert!(accepts(python.as_ref(), tiny(), &text), "{text}");
        let text = of_braces(of_gemma);
        assert!(accepts(gemma.as_ref(), tiny(), &text), "{text}");
    }
    for (of_python, of_gemma) in [
        ("4", "4"),
        ("\"y\"", "<|\"|>y<|\"|>"),
        ("[]", "[]"),
        ("[False]", "[false]"),
    ] {
        let text = pythonic(of_python);
        assert!(!accepts(python.as_ref(), tiny(), &text), "{text}");
        let text = of_braces(of_gemma);
        assert!(!accepts(gemma.as_ref(), tiny(), &text), "{text}");
    }
}

#[test]
fn nested_objects_have_their_required_properties() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"type": "integer"}}, "required": ["y"]}}, "required": ["a"]});
    let grammar = grammar(tiny(), &one_call(schema, ToolFormat::Gemma4));
    for (arguments, is_right) in [
        ("a:{x:true,y:1}", true),
        ("a:{y:1}", true),
        ("a:{x:true}", false),
        ("a:{}", false),
    ] {
        let text = braced(arguments);
        assert_eq!(accepts(grammar.as_ref(), tiny(), &text), is_right, "{text}");
    }
}

#[test]
fn pythonic_arguments_use_python_literals() {
    let wish = |schema: Value| one_call(schema, ToolFormat::Pythonic);
    let schema = json!({"type": "object", "properties": {
        "a": {"type": ["boolean", "null"]},
        "b": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "maxItems": 2},
        "c": {"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"type": "number"}}, "required": ["y"],
            "additionalProperties": false}}, "required": ["a"]});
    let grammar = grammar(tiny(), &wish(schema));
    for text in [
        "[f(a=True)]",
        "[f(a=None, b=[1, None])]",
        "[f(a=False, b=[], c={\"x\": True, \"y\": 1.5})]",
        "[f(a=None, c={\"y\": 2})]",
    ] {
        assert!(accepts(grammar.as_ref(), tiny(), text), "{text}");
    }
    for text in [
        "[f(a=true)]",
        "[f()]",
        "[f(a=True, b=[1, 2, 3])]",
        "[f(b=[], a=True)]",
        "[f(a=True, c={})]",
    ] {
        assert!(!accepts(grammar.as_ref(), tiny(), text), "{text}");
    }
    let refused = compile(
        tiny(),
        &wish(json!({"type": "object", "properties": {"a-b": {"type": "null"}}})),
    );
    assert!(
        refused
            .expect_err("it is not an identifier")
            .to_string()
            .contains("a-b")
    );
    let refused = compile(
        tiny(),
        &wish(json!({"type": "object", "properties": {"a": {"not": {}}}})),
    );
    let error = refused.expect_err("it is not supported").to_string();
    assert!(
        error.contains("\"f\"") && error.contains("#/properties/a/not"),
        "{error}"
    );
}
