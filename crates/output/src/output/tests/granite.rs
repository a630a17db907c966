//! Tests of the formats of Granite and Phi-4-mini.

use super::*;

#[test]
fn calls_are_a_list_with_an_optional_end_tag() {
    for (inside, expected) in [
        (
            r#"[{"name": "seat", "arguments": {"row": 4}}]"#,
            r#"seat({"row": 4})"#,
        ),
        (
            r#" [{"name": "a", "arguments": {"x":1}},
                {"arguments": {}, "name": "b"}]"#,
            r#"a({"x":1})b({})"#,
        ),
        (r#"{"name": "a", "arguments": {"x": 1}}"#, r#"a({"x": 1})"#),
    ] {
        for (format, end) in [
            (ToolFormat::Granite, ""),
            (ToolFormat::Phi4Mini, "<|/tool_call|>"),
        ] {
            let call = format!("<|tool_call|>{inside}{end}");
            check(format, &call, expected);
            let around = format!("Well.\n{call}So.");
            check(format, &around, &format!("«Well.»{expected}«So.»"));
        }
    }
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "[{\"name\": \"a\", \"arguments\": {}}]",
        "<|tool_call|>",
        "<|tool_call|>[]<|/tool_call|>",
        "<|tool_call|>[seat]",
        "<|tool_call|>[{\"a\": 1}]",
        "a<|/tool_call|>",
    ] {
        check_text(ToolFormat::Granite, text);
    }
}

#[test]
fn other_tags_open_lists() {
    let list = r#"[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]"#;
    let called = r#"f({"a": 1})g({})"#;
    check(ToolFormat::Granite, &format!("<tool_call>{list}"), called);
    check(
        ToolFormat::Granite,
        &format!("<tool_call>{list}</tool_call>"),
        called,
    );
    check(ToolFormat::Phi4Mini, &format!("functools{list}"), called);
    check(
        ToolFormat::Phi4Mini,
        &format!("Ok. functools{list}\n"),
        &format!("«Ok. »{called}"),
    );
    check_text(ToolFormat::Phi4Mini, "functools.partial(f) and functools[");
    for (cut, expected) in [
        ("It is in functools", "«It is in functools»"),
        ("It is in functools ", "«It is in functools »"),
        ("Ok. functools[", "«Ok. »"),
        ("Ok. functools [{\"name\": \"f", "«Ok. »"),
        ("Ok. <|tool_call|>", "«Ok. »"),
    ] {
        let engine = engine(Some(ToolFormat::Phi4Mini), None);
        assert_eq!(short(&run_cut(engine, cut)), expected, "{cut:?}");
    }
}
