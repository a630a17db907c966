//! Tests of DeepSeek's formats.

use super::*;
const F: ToolFormat = ToolFormat::DeepSeekV3;

fn section(calls: &str) -> String {
    format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
}

fn call(inside: &str) -> String {
    format!("<｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜>")
}

#[test]
fn calls_are_read_in_both_forms() {
    let old = call("function<｜tool▁sep｜>seat\n```json\n{\"row\": 4}\n```");
    let new = call("seat<｜tool▁sep｜>{\"row\": 4}");
    let expected = r#"seat({"row": 4})"#;
    for format in [F, ToolFormat::DeepSeekV31] {
        for call in [&old, &new] {
            check(format, &section(call), expected);
            check(format, call, expected);
            check(
                format,
                &format!("Well.\n{}", section(&format!("{call}\n{call}"))),
                &format!("«Well.»{expected}{expected}"),
            );
        }
    }
    check(F, &call("function<｜tool▁sep｜>a.b\n{}"), "a.b({})");
    check(
        F,
        &call("function<｜tool▁sep｜>f\n```\n{}\n``` ok"),
        "f({})« ok»",
    );
    check(
        F,
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>f\n```json\n{}",
        "f({})",
    );
    check(
        F,
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}\n``` x",
        "f({})«\n``` x»",
    );
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        section(""),
        section("x"),
        section(&call("seat")),
        section(&call("function<｜tool▁sep｜>seat")),
        call("function<｜tool▁sep｜>seat\n```python\n{}"),
        "<｜tool▁sep｜>{}".to_owned(),
        "<｜tool▁calls▁begin".to_owned(),
    ] {
        check_text(F, &text);
    }
}

/// Small distilled models write other section tags, and no call tags.
#[test]
fn other_section_tags_are_recognised() {
    for open in [
        "<｜tool▁calls▁begin｜>",
        "<｜tool_calls_begin｜>",
        "<｜tool calls begin｜>",
        "<｜tool\\_calls\\_begin｜>",
        "<｜tool▁calls｜>",
    ] {
        for call in ["", "<｜tool▁call▁begin｜>"] {
            let end = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
            let text = format!(
                "Ok.{open}{call}function<｜tool▁sep｜>seat\n```json\n{{\"row\": 4}}\n```{end}"
            );
            check(ToolFormat::DeepSeekV3, &text, r#"«Ok.»seat({"row": 4})"#);
            let text = format!("Ok.{open}{call}seat<｜tool▁sep｜>{{\"row\": 4}}{end}");
            check(ToolFormat::DeepSeekV31, &text, r#"«Ok.»seat({"row": 4})"#);
        }
    }
}
