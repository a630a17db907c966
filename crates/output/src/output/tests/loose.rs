//! Tests of calls without the tag of the model's format.

use super::*;
const F: ToolFormat = ToolFormat::Hermes;
const OBJECT: &str = r#"{"name": "seat", "arguments": {"row": 4}}"#;
const CALL: &str = r#"seat({"row": 4})"#;
/// All formats except that of gpt-oss.
const TAGGED: [ToolFormat; 13] = [
    ToolFormat::Hermes,
    ToolFormat::Qwen3Coder,
    ToolFormat::Llama3,
    ToolFormat::Pythonic,
    ToolFormat::Mistral,
    ToolFormat::Lfm2,
    ToolFormat::Glm45,
    ToolFormat::Glm47,
    ToolFormat::DeepSeekV3,
    ToolFormat::DeepSeekV31,
    ToolFormat::Gemma4,
    ToolFormat::Granite,
    ToolFormat::Phi4Mini,
];

#[test]
fn a_fenced_object_that_names_a_tool_is_a_call() {
    let fenced = format!("```json\n{OBJECT}\n```");
    for format in TAGGED {
        check(format, &fenced, CALL);
        check(
            format,
            &format!("So:\n\n{fenced}\n"),
            &format!("«So:»{CALL}"),
        );
        check(
            format,
            &format!("{fenced}\n\nDone."),
            &format!("{CALL}«\n\nDone.»"),
        );
    }
    for open in ["```\n", "```xml\n", "```json\n\n  ", "```json ", "```json"] {
        for close in ["\n```", "```", "", "  \n```\n"] {
            check(F, &format!("{open}{OBJECT}{close}"), CALL);
        }
    }
}

#[test]
fn a_fenced_object_on_several_lines_is_a_call() {
    let arguments = "{\n    \"city\": \"Paris\",\n    \"row\": 4\n  }";
    let text = format!("```json\n{{\n  \"name\": \"seat\",\n  \"arguments\": {arguments}\n}}\n```");
    check(F, &text, &format!("seat({arguments})"));
}

#[test]
fn a_code_span_that_begins_an_answer_is_a_call() {
    for format in TAGGED {
        for end in ["`", " `\n", ""] {
            check(format, &format!("`{OBJECT}{end}"), CALL);
        }
        check(
            format,
            &format!("\n`{OBJECT}`\nSo."),
            &format!("{CALL}«\nSo.»"),
        );
        check(
            format,
            &format!("<think>x</think>`{OBJECT}`"),
            &format!("‹x›{CALL}"),
        );
    }
    check_text(F, r#"`{"name": "Ada", "arguments": {"row": 4}}`"#);
    check_text(F, &format!("`{OBJECT}`").replace('4', "<row>"));
    check_text(F, &format!("```\na\n```\n`{OBJECT}`"));
}

#[test]
fn objects_alone_are_calls() {
    check(F, OBJECT, CALL);
    check(
        F,
        &format!("Now this:\n{OBJECT}"),
        &format!("«Now this:»{CALL}"),
    );
    check(
        F,
        &format!("Now: {OBJECT} ok"),
        &format!("«Now: »{CALL}« ok»"),
    );
    check(F, &format!("{OBJECT}\n{OBJECT}"), &format!("{CALL}{CALL}"));
    check(
        F,
        &format!("<think>x</think>\n\n{OBJECT}"),
        &format!("‹x›{CALL}"),
    );
}

#[test]
fn a_fence_or_a_list_may_hold_several_calls() {
    for between in ["\n", ",\n", "\n\n", ", "] {
        let text = format!("```json\n{OBJECT}{between}{OBJECT}\n```\n");
        check(F, &text, &format!("{CALL}{CALL}"));
        let text = format!("```json\n[\n{OBJECT}{between}{OBJECT}\n]\n```");
        check(F, &text, &format!("{CALL}{CALL}"));
        check(
            F,
            &format!("[{OBJECT}{between}{OBJECT}]"),
            &format!("{CALL}{CALL}"),
        );
        let text = format!("<tool_call>\n[{OBJECT}, {OBJECT}]\n</tool_call>");
        check(F, &text, &format!("{CALL}{CALL}"));
    }
    let text = format!("```json\n{OBJECT}\n```\n\n```json\n{OBJECT}\n```");
    check(F, &text, &format!("{CALL}{CALL}"));
}

#[test]
fn tags_of_other_formats_are_recognised() {
    for tag in [
        "function_call",
        "tool",
        "tools",
        "response",
        "json",
        "xml",
        "JSON",
    ] {
        for format in [F, ToolFormat::Llama3] {
            check(format, &format!("<{tag}>\n  {OBJECT}\n</{tag}>"), CALL);
            check(
                format,
                &format!("```xml\n<{tag}>\n{OBJECT}\n</{tag}>\n```"),
                CALL,
            );
        }
    }
    check(
        F,
        &format!("```json\n<tool_call>\n{OBJECT}\n</tool_call>\n```"),
        CALL,
    );
    let arguments = r#"{"row": 4}"#;
    check(F, &format!("<function=seat>{arguments}</function>"), CALL);
    check(
        F,
        &format!("<function name=\"seat\">\n{arguments}\n</function>"),
        CALL,
    );
    check_text(
        ToolFormat::Mistral,
        &format!("<function=seat>{arguments}</function>"),
    );
}

#[test]
fn arguments_may_have_other_places_and_forms() {
    for inside in [
        r#""arguments": {"row": 4}, "name": "seat""#,
        r#""name": "seat", "parameters": {"row": 4}"#,
        r#""name": "seat", "arguments": "{\"row\": 4}""#,
        r#""type": "function", "name": "seat", "parameters": {"row": 4}"#,
        r#""id": "1", "type": "function", "function": {"name": "seat", "arguments": {"row": 4}}"#,
        r#""tool_call": {"name": "seat", "arguments": {"row": 4}}"#,
    ] {
        check(F, &format!("```json\n{{{inside}}}\n```"), CALL);
        check(F, &format!("{{{inside}}}"), CALL);
    }
    check(F, r#"{"name": "seat"}"#, "seat({})");
    check(F, r#"{"name": "seat", "arguments": null}"#, "seat({})");
}

#[test]
fn other_objects_and_fences_are_text() {
    for text in [
        r#"{"name": "Ada", "arguments": {"row": 4}}"#,
        r#"{"name": "seat", "age": 36}"#,
        r#"{"name": "seat", "description": "Seats.", "parameters": {"type": "object"}}"#,
        r#"{"name": "seat", "arguments": 4}"#,
        r#"{"name": "seat", "arguments": [4]}"#,
        r#"{"name": "seat", "arguments": "four"}"#,
        r#"{"name": "seat", "arguments": {"row": <row>}}"#,
        r#"{"name": "seat", "arguments": {"row": 4 5}}"#,
        r#"{"name": "seat", "arguments": {"row": 4,}}"#,
        r#"{"name": "seat", "arguments": {row: 4}}"#,
        r#"{"name": "seat", "arguments": {"row": 4}"#,
        r#"{"name": "seat", "arguments": {"row": "4"#,
        r#"{"arguments": {"row": 4}}"#,
        "{}",
        "{",
        "```",
        "`{`",
        "```json\n```",
        "```json\n[1, 2]\n```",
        "[{",
        "<tools></tools>",
        "<function=other>{}</function>",
    ] {
        check_text(F, text);
        check_text(F, &format!("```json\n{text}\n``` and on"));
        check_text(F, &format!("Well: {text}"));
    }
    check_text(F, &format!("Well: `{OBJECT}`"));
    check_text(F, &format!("``{OBJECT}``"));
    check_text(F, &format!("call({OBJECT})"));
    check_text(
        F,
        &format!("```python\ncall = {OBJECT}\nx: {OBJECT}\n```\nso"),
    );
}

#[test]
fn no_text_before_a_call_is_lost() {
    for (format, before) in [(ToolFormat::Mistral, "a < "), (F, "a < "), (F, "a [ b ")] {
        check(
            format,
            &format!("{before}{OBJECT}"),
            &format!("«{before}»{CALL}"),
        );
    }
    for after in [" and on", ", and on", "\n<b>"] {
        check(
            F,
            &format!("[{OBJECT}{after}"),
            &format!("«[»{CALL}«{after}»"),
        );
    }
}

#[test]
fn a_list_may_end_with_the_output() {
    for end in ["", "\n", ",", "]", ",]"] {
        let text = format!("[{OBJECT}{end}");
        check(F, &text, CALL);
        assert_eq!(short(&run_cut(engine(Some(F), None), &text)), CALL);
    }
}

#[test]
fn a_fence_may_enclose_several_tagged_calls() {
    let tagged = format!("<tool_call>\n{OBJECT}\n</tool_call>");
    check(
        F,
        &format!("```json\n{tagged}\n{tagged}\n```\n"),
        &format!("{CALL}{CALL}"),
    );
    let other = r#"<tool_call>{"name": "x", "arguments": {}}</tool_call>"#;
    check(
        F,
        &format!("```json\n{tagged}\n{other}\n```\nNow: {OBJECT}"),
        &format!("{CALL}x({{}})«\n```\nNow: »{CALL}"),
    );
}

#[test]
fn other_text_after_a_call_in_its_fence_or_list_is_text() {
    for after in [
        "\n{\"a\": 1}\n```",
        ",\n{\"a\": 1}\n```",
        "\n\nSo it is.\n```",
        "\n`` and so",
    ] {
        check(
            F,
            &format!("```json\n{OBJECT}{after}\nNow: {OBJECT}"),
            &format!("{CALL}«{after}\nNow: »{CALL}"),
        );
    }
    check(
        F,
        &format!("[{OBJECT}, {{\"a\": 1}}] Now: {OBJECT}"),
        &format!("{CALL}«[, {{\"a\": 1}}] Now: »{CALL}"),
    );
}

#[test]
fn calls_after_a_closed_code_block_are_found() {
    for code in [
        "Here: ```json\n{\"a\": 1}\n```",
        "Here: ```python\nx = 1\n```",
        "Here: ```\nx = 1\n```",
        "Here: ```x = 1```",
        "Write ``` before it.",
        "```x = 1```",
    ] {
        check(
            F,
            &format!("{code}\nNow: {OBJECT}"),
            &format!("«{code}\nNow: »{CALL}"),
        );
    }
    check_text(F, &format!("Here: ```python\ncall = {OBJECT}\n```\nso"));
}

#[test]
fn text_that_must_follow_a_schema_is_not_a_call() {
    let engine = engine(Some(F), None).with_calls_in_format_only();
    assert_eq!(short(&run(engine, OBJECT)), format!("«{OBJECT}»"));
    let engine = super::engine(Some(F), None).with_calls_in_format_only();
    let tagged = format!("<tool_call>{OBJECT}</tool_call>");
    assert_eq!(short(&run(engine, &tagged)), CALL);
}

#[test]
fn one_call_ends_an_answer_without_parallel_calls() {
    let formats = OutputFormats {
        tool: Some(F),
        reasoning: None,
    };
    let markers = Arc::new(Markers::default());
    let mut engine =
        OutputEngine::new(formats, Some(tools(false)), markers, OutputStart::default());
    let mut pieces = Vec::new();
    engine.push_text(&format!("```json\n{OBJECT}"), &mut pieces);
    assert!(engine.wants_end());
    assert_eq!(short(&pieces), CALL);
}

/// The grammar of strict tools accepts some forms of an object, and constrains the arguments in those.
#[test]
fn a_strict_tool_is_called_only_in_forms_of_its_grammar() {
    let strict = || {
        let mut strict = (*tools(true)).clone();
        strict.tools[0].strict = true;
        let formats = OutputFormats {
            tool: Some(F),
            reasoning: None,
        };
        let (markers, start) = (Arc::new(Markers::default()), OutputStart::default());
        OutputEngine::new(formats, Some(Arc::new(strict)), markers, start)
    };
    for (begin, end) in strict_openings("seat") {
        let text = format!("```json\n{begin}{{\"row\": 4}}{end}\n```");
        assert_eq!(short(&run(strict(), &text)), CALL);
    }
    for text in [
        "{ \"name\": \"seat\", \"arguments\": {\"row\": 4}}",
        "{\"name\":\"seat\",\"arguments\":{\"row\": 4}}",
        "{\"name\": \"seat\", \"parameters\": {\"row\": 4}}",
        "{\"arguments\": {\"row\": 4}, \"name\": \"seat\"}",
        "<function=seat>{\"row\": 4}</function>",
    ] {
        assert_eq!(short(&run(strict(), text)), format!("«{text}»"));
    }
}
