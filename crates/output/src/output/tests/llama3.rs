//! Tests of the format of Llama 3.

use super::*;
const F: ToolFormat = ToolFormat::Llama3;

#[test]
fn calls_are_found() {
    let (a, b) = (
        r#"{"name": "seat", "parameters": {"row": 4}}"#,
        r#"{"name":"b","arguments":{}}"#,
    );
    check(F, a, r#"seat({"row": 4})"#);
    check(
        F,
        &format!("<|python_tag|>{a}; {b};"),
        r#"seat({"row": 4})b({})"#,
    );
    check(F, &format!("\n{a};{b}"), r#"seat({"row": 4})b({})"#);
    check(F, &format!("So: <|python_tag|>{b}"), "«So: »b({})");
    check(F, &format!("<think>x</think>\n{b} ; y"), "‹x›b({})« ; y»");
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        r#"{"name": "Ada", "age": 36}"#,
        r#"{"name": "Ada"}"#,
        r#"{"age": 36, "name": "Ada"}"#,
        r#"{"name": "f", "parameters": 4}"#,
        r#"{"name": "f", "parameters": null}"#,
        r#"{"parameters": {}, "name": "f"}"#,
        r#"A {"name": "f", "parameters": {}}"#,
        "<|python_tag|>print(1)",
        "{",
    ] {
        check_text(F, text);
    }
}

#[test]
fn a_call_may_have_the_type_function() {
    let text = r#"{"type": "function", "name": "f", "parameters": {"a": 1}}"#;
    check(F, text, r#"f({"a": 1})"#);
    check(F, &format!("<|python_tag|>{text}"), r#"f({"a": 1})"#);
}

/// vLLM finds such objects after words and with text between them.
#[test]
fn objects_that_name_a_tool_are_calls_anywhere() {
    let call = r#"{"name": "seat", "parameters": {"row": 4}}"#;
    let (text, called) = (format!("Here: {call} Well?"), r#"seat({"row": 4})"#);
    check(F, &text, &format!("«Here: »{called}« Well?»"));
    check(F, &format!("{call}\n{call}"), &format!("{called}{called}"));
    check(
        F,
        &format!("{call}, {call}"),
        &format!("{called}«, »{called}"),
    );
}
