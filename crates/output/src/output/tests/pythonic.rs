//! Tests of calls in Python's notation.

use super::*;
const F: ToolFormat = ToolFormat::Pythonic;

#[test]
fn calls_are_found() {
    check(
        F,
        r#"[seat(row=4, who="Ada"), a.light(on = True,), b()]"#,
        r#"seat({"row": 4, "who": "Ada"})a.light({"on": true})b({})"#,
    );
    check(
        F,
        "<|python_start|>[f(a=1)]<|python_end|>",
        r#"f({"a": 1})"#,
    );
    check(F, " \n[f(a=1)] ok", "f({\"a\": 1})« ok»");
}

#[test]
fn values_become_json() {
    let cases = [
        ("-1.5e3", "-1.5e3"),
        ("None", "null"),
        ("red", "\"red\""),
        (r#"'it\'s "x"'"#, r#""it's \"x\"""#),
        (r#""a\n\x41\u00e9\U0001f600\101\q""#, r#""a\nAé😀A\\q""#),
        (r#""\ud83d\ude00 \ud83d""#, r#""😀 �""#),
        (r#""""a "b" ""c""""#, r#""a \"b\" \"\"c""#),
        ("''", "\"\""),
        (r"r'a\n'", r#""a\\n""#),
        ("[1, [], (2,), {}]", "[1, [], [2], {}]"),
        (
            "{'a': {1: False}, \"b\": [None]}",
            r#"{"a": {"1": false}, "b": [null]}"#,
        ),
        ("'[f(x=1)] }'", "\"[f(x=1)] }\""),
    ];
    for (python, json) in cases {
        check(
            F,
            &format!("[f(a={python})]"),
            &format!("f({{\"a\": {json}}})"),
        );
        check(
            F,
            &format!("[f(a={python} , b=2)]"),
            &format!("f({{\"a\": {json}, \"b\": 2}})"),
        );
        assert!(serde_json::from_str::<Value>(json).is_ok());
    }
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "[1, 2, 3]",
        "[link](url)",
        "[note (a)]",
        "[f(1)]",
        "[f(a, b)]",
        "[f(",
        "[f(a=",
        "[]",
        "[\"a\"]",
        "See [f(a=1)]",
        "<|python_start|>f(a=1)",
    ] {
        check_text(F, text);
    }
}

#[test]
fn a_broken_call_has_no_end() {
    check(F, "[f(a=1 + 2)]", r#"f({"a": 1«+ 2)]»"#);
    check(F, "[f(a=[1)]", r#"f({"a": [1«)]»"#);
    check(F, "[f(a=1), g(x)]", "f({\"a\": 1})«[, g(x)]»");
}
