//! Tests of structural tags, in SGLang's older form and XGrammar's form.

use std::sync::Arc;

use serde_json::{Value, json};

use super::vocabularies::{Vocabulary, large, tiny};
use super::walk::walk_for;
use super::{accepts, compile, wish};
use souffleur_state::grammar::Constraint;

fn tag(value: Value) -> Constraint {
    Constraint::StructuralTag(Arc::new(value))
}

fn format(format: Value) -> Constraint {
    tag(json!({"type": "structural_tag", "format": format}))
}

/// Checks texts that a format accepts and texts that it rejects.
fn check(vocabulary: &Vocabulary, constraint: Constraint, good: &[&str], bad: &[&str]) {
    let name = format!("{constraint:?}");
    let compiler = vocabulary.compiler();
    let grammar = compile(compiler, constraint).unwrap_or_else(|error| panic!("{name}: {error}"));
    for text in good {
        assert!(
            accepts(grammar.as_ref(), vocabulary, text),
            "{name}: {text:?}"
        );
    }
    for text in bad {
        assert!(
            !accepts(grammar.as_ref(), vocabulary, text),
            "{name}: {text:?}"
        );
    }
    for seed in 0..3 {
        // A walk may reach its limit of tokens inside free text.
        let walk = walk_for(grammar.as_ref(), vocabulary, seed, 200);
        assert!(walk.end.is_ok(), "{name}: {}", walk.text);
    }
}

fn integer() -> Value {
    json!({"type": "json_schema", "json_schema": {"type": "integer"}})
}

#[test]
fn the_old_form_is_free_text_with_tags() {
    let old = || {
        tag(
            json!({"type": "structural_tag", "triggers": ["<f="], "structures": [
            {"begin": "<f=a>", "schema": {"type": "object", "properties": {"x": {"type": "integer"}},
                "required": ["x"], "additionalProperties": false}, "end": "</f>"},
            {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"}]}),
        )
    };
    let good = [
        "",
        "text < <f >",
        "so <f=a>{\"x\": 1}</f> and <f=b>true</f> done",
        "<f=b>false</f>",
    ];
    let bad = ["<f=a>{}</f>", "<f=c>", "x <f=b>1</f>", "<f=b>true"];
    check(tiny(), old(), &good, &bad);
    check(large(), old(), &good, &bad);
}

#[test]
fn tags_that_are_markers_match_the_tokens() {
    let called = || {
        format(
            json!({"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [
            {"type": "tag", "begin": "<tool_call>\n", "content": integer(), "end": "\n</tool_call>"}]}),
        )
    };
    let good = [
        "",
        "a<think>b</think>c<tool_call>\n1\n</tool_call>d",
        "<tool_call>\n12\n</tool_call>",
    ];
    let bad = ["<tool_call>x", "<tool_call>\n1</tool_call>"];
    check(large(), called(), &good, &bad);
    // In a vocabulary without these tokens, tags are plain text.
    check(tiny(), called(), &good, &bad);
}

#[test]
fn formats_can_be_nested() {
    let yes = json!({"type": "const_string", "value": "yes"});
    let number = json!({"type": "regex", "pattern": "[0-9]{2}"});
    let cases: [(Value, &[&str], &[&str]); 12] = [
        (yes.clone(), &["yes"], &["", "yesyes"]),
        (integer(), &["1", "-20"], &["x"]),
        (number.clone(), &["12"], &["1", "123"]),
        (
            json!({"type": "grammar", "grammar": "root ::= \"a\" root | \"b\""}),
            &["aab"],
            &["aa"],
        ),
        (
            json!({"type": "sequence", "elements": [yes, integer(), {"type": "grammar", "grammar": "root ::= \"!\""}]}),
            &["yes7!"],
            &["7!", "yes7"],
        ),
        (
            json!({"type": "or", "elements": [yes, number]}),
            &["yes", "33"],
            &["yes33"],
        ),
        (
            json!({"type": "sequence", "elements": [{"type": "optional", "content": yes}, {"type": "plus", "content": number},
            {"type": "star", "content": {"type": "const_string", "value": "."}}]}),
            &["yes1122..", "12"],
            &["yes", "."],
        ),
        (
            json!({"type": "repeat", "min": 2, "max": 3, "content": yes}),
            &["yesyes", "yesyesyes"],
            &["yes"],
        ),
        (
            json!({"type": "tag", "begin": "[", "content": {"type": "any_text"}, "end": ["]", "/]"]}),
            &["[]", "[a [b ]", "[x/]"],
            &["[a", "[a] b"],
        ),
        (
            json!({"type": "any_text", "excludes": ["no", "never"]}),
            &["n o", ""],
            &["a no", "never"],
        ),
        (
            json!({"type": "tags_with_separator", "separator": ", ", "at_least_one": true, "tags": [
            {"begin": "<a>", "content": integer(), "end": "</a>"}, {"begin": "<b>", "content": yes, "end": "</b>"}]}),
            &["<a>1</a>", "<b>yes</b>, <a>2</a>"],
            &["", "<a>1</a><a>1</a>", "<a>1</a>, "],
        ),
        (
            json!({"type": "qwen_xml_parameter", "json_schema": {"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}}),
            &[
                "<parameter=b>\n3\n</parameter>\n",
                "<parameter=a>\nx < y\n</parameter>\n<parameter=b>\n3\n</parameter>\n",
            ],
            &["", "<parameter=b>\nx\n</parameter>\n"],
        ),
    ];
    for (tree, good, bad) in cases {
        check(tiny(), format(tree), good, bad);
    }
}

#[test]
fn flags_set_the_number_of_tags() {
    let with = |at_least_one: bool, stop_after_first: bool| {
        format(
            json!({"type": "triggered_tags", "triggers": ["<"], "at_least_one": at_least_one,
            "stop_after_first": stop_after_first, "tags": [{"begin": "<a>", "content": integer(), "end": "</a>"}]}),
        )
    };
    let texts = [
        "",
        "x",
        "<a>1</a>",
        "x<a>1</a>",
        "<a>1</a>x",
        "<a>1</a><a>2</a>",
        "x<a>1</a>y<a>2</a>z",
    ];
    for (at_least_one, stop_after_first, wanted) in [
        (false, false, [true, true, true, true, true, true, true]),
        (true, false, [false, false, true, false, true, true, false]),
        (false, true, [true, true, true, true, false, false, false]),
        (true, true, [false, false, true, false, false, false, false]),
    ] {
        let compiler = tiny().compiler();
        let grammar = compile(compiler, with(at_least_one, stop_after_first)).expect("it compiles");
        let found = texts.map(|text| accepts(grammar.as_ref(), tiny(), text));
        assert_eq!(found, wanted, "{at_least_one} {stop_after_first}");
    }
}

#[test]
fn a_tag_ends_the_free_text_inside() {
    let inner = json!({"type": "triggered_tags", "triggers": ["<n>"], "tags": [
        {"begin": "<n>", "content": integer(), "end": "</n>"}]});
    let nested = json!({"type": "sequence", "elements": [
        {"type": "tag", "begin": "<think>", "content": inner, "end": "</think>"}, integer()]});
    let good = ["<think></think>1", "<think>a <n>2</n> b</think>3"];
    let bad = ["<think>a", "<think>a</think>x", "<think><n>x</n></think>1"];
    check(tiny(), format(nested.clone()), &good, &bad);
    check(large(), format(nested), &good, &bad);
}

#[test]
fn unsupported_formats_are_rejected_with_their_place() {
    let compiler = tiny().compiler();
    for (value, expected) in [
        (json!({"type": "structural_tag"}), "format"),
        (json!({"type": "other", "format": {}}), "#/type"),
        (json!({"format": {"type": "token", "token": 1}}), "token"),
        (json!({"format": {"type": "dispatch"}}), "dispatch"),
        (
            json!({"format": {"type": "sequence", "elements": [{"type": "nothing"}]}}),
            "#/format/elements/0",
        ),
        (
            json!({"format": {"type": "json_schema", "json_schema": {"not": {}}}}),
            "#/not",
        ),
        (
            json!({"format": {"type": "json_schema", "style": "glm_xml", "json_schema": {}}}),
            "style",
        ),
        (
            json!({"format": {"type": "any_text", "max_tokens": 3}}),
            "max_tokens",
        ),
        (
            json!({"format": {"type": "tag", "begin": "a", "content": {"type": "any_text"}}}),
            "end",
        ),
        (
            json!({"format": {"type": "triggered_tags", "triggers": ["x"], "tags": [
            {"begin": "y", "content": {"type": "any_text"}, "end": "z"}]}}),
            "exactly one trigger",
        ),
        (
            json!({"format": {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex", "pattern": "a"}]}}),
            "without a const_string after it",
        ),
    ] {
        let refused = compiler.compile(&wish(tag(value.clone())), &|| false);
        let error = refused.expect_err("it is refused").to_string();
        assert!(error.contains(expected), "{value}: {error}");
    }
}
