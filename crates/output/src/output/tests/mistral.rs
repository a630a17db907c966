//! Tests of Mistral's format.

use super::*;
const F: ToolFormat = ToolFormat::Mistral;

#[test]
fn calls_are_found() {
    check(
        F,
        r#"[TOOL_CALLS] [{"name": "seat", "arguments": {"row": 4}}, {"name":"b","arguments":{},"id":"1"}]"#,
        r#"seat({"row": 4})b({})"#,
    );
    check(
        F,
        r#"Ok.[TOOL_CALLS]seat[ARGS]{"row": 4}[TOOL_CALLS]b[CALL_ID]a1B[ARGS] {"x":"[TOOL_CALLS]"}"#,
        r#"«Ok.»seat({"row": 4})b({"x":"[TOOL_CALLS]"})"#,
    );
    check(F, "[TOOL_CALLS]b{}", "b({})");
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "[TOOL_CALLS]",
        "[TOOL_CALL] [",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [1, 2]",
        "[TOOL_CALLS] hello world",
        "[TOOL_CALLS]f[ARGS]no",
        "[TOOL_CALLS]f[ARGS]",
        "[ARGS] [CALL_ID]",
        "[TOOL_CALLS][TOOL_CALLS]",
    ] {
        check_text(F, text);
    }
}

#[test]
fn one_object_needs_no_list() {
    let object = r#"{"name": "seat", "arguments": {"row": 4}}"#;
    check(F, &format!("[TOOL_CALLS]{object}"), r#"seat({"row": 4})"#);
    check(F, &format!("[TOOL_CALLS] {object}"), r#"seat({"row": 4})"#);
}
