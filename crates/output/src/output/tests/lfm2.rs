//! Tests of the format of LFM2.

use super::*;
const F: ToolFormat = ToolFormat::Lfm2;

#[test]
fn calls_are_in_python_or_objects() {
    let call = |inside: &str| format!("<|tool_call_start|>{inside}<|tool_call_end|>");
    for (inside, expected) in [
        (
            "[seat(row=4, who='Ada')]",
            r#"seat({"row": 4, "who": "Ada"})"#,
        ),
        ("[a(), b(x=[True, None])]", r#"a({})b({"x": [true, null]})"#),
        ("seat(row=4)", r#"seat({"row": 4})"#),
        (
            r#"[{"name": "a", "arguments": {"x":1}}, {"name": "b"}]"#,
            r#"a({"x":1})b({})"#,
        ),
        (r#"{"name": "a", "arguments": {"x": 1}}"#, r#"a({"x": 1})"#),
    ] {
        check(F, &call(inside), expected);
        check(
            F,
            &format!("Well.\n{}So.", call(inside)),
            &format!("«Well.»{expected}«So.»"),
        );
    }
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "[seat(row=4)]",
        "<|tool_call_start|>",
        "<|tool_call_start|>[]<|tool_call_end|>",
        "<|tool_call_start|>[seat]<|tool_call_end|>",
        "<|tool_call_start|>[{\"a\": 1}]<|tool_call_end|>",
    ] {
        check_text(F, text);
    }
}
