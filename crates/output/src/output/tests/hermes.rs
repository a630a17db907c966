//! Tests of the format of Hermes and Qwen.

use super::*;
const F: ToolFormat = ToolFormat::Hermes;

#[test]
fn calls_are_found() {
    check(
        F,
        "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4}}\n</tool_call>",
        r#"seat({"row": 4})"#,
    );
    check(
        F,
        "Sure.\n\n<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\":\"b\",\
         \"arguments\":{\"x\":[{}]}}\n</tool_call>\n",
        r#"«Sure.»a({})b({"x":[{}]})"#,
    );
    check(
        F,
        "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\nDone.\n",
        "a({})«\nDone.\n»",
    );
}

#[test]
fn arguments_are_unchanged() {
    let arguments =
        r#"{ "a" :"<tool_call> </tool_call> }\"\\", "é": [1e5,-0.0, {"x":null}],"b":"\u00e9"}"#;
    let text = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>");
    check(F, &text, &format!("f({arguments})"));
}

#[test]
fn arguments_may_come_first_or_in_other_forms() {
    let call = |inside: &str| format!("<tool_call>\n{{{inside}}}\n</tool_call>");
    let cases = [
        (r#""arguments":{"a":1},"name":"f""#, r#"f({"a":1})"#),
        (r#""name":"f","parameters":{"a":1}"#, r#"f({"a":1})"#),
        (
            r#""name":"f","arguments":"{\"a\": \"\\u00e9\"}""#,
            r#"f({"a": "\u00e9"})"#,
        ),
        (r#""arguments":"{\"a\":1}","name":"f""#, r#"f({"a":1})"#),
        (r#""name":"f","arguments":"""#, "f({})"),
        (r#""name":"f","arguments":null"#, "f({})"),
        (r#""name":"f""#, "f({})"),
        (
            r#""id":"x","name":"f","arguments":{},"more":[1,{}]"#,
            "f({})",
        ),
        (r#""name":"f","arguments":{},"arguments":{"b":2}"#, "f({})"),
        (r#""na\u006de":"f\"g","arguments":{}"#, "f\"g({})"),
    ];
    for (inside, expected) in cases {
        check(F, &call(inside), expected);
    }
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "<tool_call>",
        "<tool_call",
        "Use <tool_call> tags.",
        "<tool_call>not json</tool_call> and on",
        "<tool_call>\n{\"foo\": 1}\n</tool_call>",
        "<tool_call>{\"name\": 4}</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"f\"",
        "a </tool_call> b",
        "{\"name\": \"f\", \"arguments\": {}}",
        "\n\n<tool_call>\n[]",
        "text\n",
        " \n ",
    ] {
        check_text(F, text);
    }
}

#[test]
fn parsing_continues_after_an_invalid_opening() {
    check(
        F,
        "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "«<tool_call>»f({})",
    );
    check(
        F,
        "<think>Use <tool_call> {\"x</think>\nYes",
        "‹Use <tool_call> {\"x›«Yes»",
    );
}

#[test]
fn a_broken_call_has_no_end() {
    check(
        F,
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[1}}</tool_call> x",
        "f({\"a\":[1«}}</tool_call> x»",
    );
    check(
        F,
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\"",
        "f({\"a\"",
    );
}

#[test]
fn complete_arguments_make_a_call() {
    check(
        F,
        "<tool_call>{\"name\":\"f\",\"arguments\":{}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}",
        "f({})g({})",
    );
}

#[test]
fn one_call_ends_an_output_without_parallel_calls() {
    let formats = OutputFormats {
        tool: Some(F),
        reasoning: None,
    };
    let markers = Arc::new(Markers::default());
    let mut engine =
        OutputEngine::new(formats, Some(tools(false)), markers, OutputStart::default());
    let mut pieces = Vec::new();
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    engine.push_text("a", &mut pieces);
    assert!(!engine.wants_end());
    engine.push_text(&format!("{call}{call} b"), &mut pieces);
    assert!(engine.wants_end());
    engine.finish(OutputEnding::Whole, &mut pieces);
    assert_eq!(short(&pieces), "«a»f({})");
    assert_eq!(engine.complete_calls(), 1);
}
