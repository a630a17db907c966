//! Tests of calls whose arguments are invalid, and of lists with an item that is not a call.

use super::*;

const OBJECT: &str = r#"{"name": "seat", "arguments": {"row": 4}}"#;
const CALL: &str = r#"seat({"row": 4})"#;

fn tagged(arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"seat\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// Checks that a non-streaming answer is exactly `text`, alone and within other text.
fn check_whole(format: ToolFormat, text: &str) {
    for text in [text.to_owned(), format!("Well.\n\n{text} So.")] {
        let pieces = run(engine(Some(format), None), &text);
        assert_eq!(whole(&pieces), text, "{format:?} {pieces:?}");
        assert!(!pieces.contains(&OutputPiece::CallEnd), "{pieces:?}");
    }
}

#[test]
fn arguments_that_are_not_json_make_no_call() {
    for arguments in [
        "{\"row\": 4,}",
        "{row: 4}",
        "{'row': 4}",
        "{\"row\": True}",
        "{\"row\" 4}",
        "{\"row\": 4 5}",
        "{\"row\": 04}",
        "{\"row\": .5}",
        "{\"row\": [4}",
        "{\"row\": nul}",
        "{\"who\": \"a\\d\"}",
        "{\"row\": 4 // four\n}",
        "\"{\\\"row\\\": 4,}\"",
        "\"{\\\"row\\\": 4\"",
        "\"{\\\"row\\\": 4} 5\"",
    ] {
        check_whole(ToolFormat::Hermes, &tagged(arguments));
    }
    for (format, text) in [
        (
            ToolFormat::Llama3,
            "<|python_tag|>{\"name\": \"seat\", \"parameters\": {\"row\": 4,}}",
        ),
        (
            ToolFormat::Mistral,
            "[TOOL_CALLS] [{\"name\": \"seat\", \"arguments\": {\"row\": 4,}}]",
        ),
        (ToolFormat::Mistral, "[TOOL_CALLS]seat[ARGS]{\"row\": 4,}"),
        (
            ToolFormat::DeepSeekV3,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>seat\n```json\n{\"row\": 4,}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            ToolFormat::DeepSeekV31,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>seat<｜tool▁sep｜>{\"row\": 4,}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            ToolFormat::Granite,
            "<|tool_call|>[{\"name\": \"seat\", \"arguments\": {\"row\": 4,}}]",
        ),
        (
            ToolFormat::Phi4Mini,
            "<|tool_call|>[{\"name\": \"seat\", \"arguments\": {\"row\": 4,}}]<|/tool_call|>",
        ),
        (
            ToolFormat::Pythonic,
            "<|python_start|>[seat(row=4 + 2)]<|python_end|>",
        ),
        (
            ToolFormat::Lfm2,
            "<|tool_call_start|>[seat(row=[4)]<|tool_call_end|>",
        ),
        (
            ToolFormat::Gemma4,
            "<|tool_call>call:seat{row:}<tool_call|>",
        ),
    ] {
        check_whole(format, text);
    }
}

/// Models write control characters unescaped; strict clients get valid JSON.
#[test]
fn bare_control_characters_in_strings_are_escaped() {
    let bare = "{\"text\": \"a\n\tb\u{1}\"}";
    let escaped = "{\"text\": \"a\\n\\tb\\u0001\"}";
    for (format, call) in [
        (ToolFormat::Hermes, tagged(bare)),
        (
            ToolFormat::Hermes,
            format!("```json\n{{\"name\": \"seat\", \"arguments\": {bare}}}\n```"),
        ),
        (ToolFormat::Mistral, format!("[TOOL_CALLS]seat[ARGS]{bare}")),
        (
            ToolFormat::DeepSeekV31,
            format!(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>seat<｜tool▁sep｜>{bare}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
        ),
    ] {
        check(format, &call, &format!("seat({escaped})"));
    }
}

#[test]
fn objects_inside_a_broken_call_are_not_calls() {
    let inner = format!("{{\"row\": True, \"calls\": [{OBJECT}]}}");
    let text = tagged(&inner);
    check_whole(ToolFormat::Hermes, &text);
    let pieces = run(
        engine(Some(ToolFormat::Hermes), None),
        &format!("{text}\n<tool_call>\n{OBJECT}\n</tool_call>"),
    );
    assert_eq!(whole(&pieces), format!("{text}{CALL}"));
}

#[test]
fn arguments_that_are_neither_an_object_nor_blank_are_text_in_streams_too() {
    for arguments in ["4", "true", "[4]", "[]", "\"four\"", "\"[4]\"", "\"null\""] {
        let text = tagged(arguments);
        check_whole(ToolFormat::Hermes, &text);
        check_text(ToolFormat::Hermes, &text);
    }
    for format in [ToolFormat::Granite, ToolFormat::Mistral, ToolFormat::Lfm2] {
        let open = format.opening();
        for arguments in ["4", "[4]", "\"four\""] {
            let text = format!("{open}[{{\"name\": \"seat\", \"arguments\": {arguments}}}]");
            check_text(format, &text);
        }
    }
    for blank in ["\"\"", "\" \"", "null", "{}", "{ }", "\" {} \""] {
        let pieces = run(engine(Some(ToolFormat::Hermes), None), &tagged(blank));
        let arguments = if blank == "{ }" { blank } else { "{}" };
        assert_eq!(short(&pieces), format!("seat({arguments})"));
    }
}

#[test]
fn a_function_message_that_is_not_json_is_content() {
    let read = |text: &str| {
        let formats = OutputFormats {
            tool: Some(ToolFormat::GptOss),
            reasoning: Some(ReasoningFormat::GptOss),
        };
        let (markers, start) = (Arc::new(Markers::default()), OutputStart::Header);
        let engine = OutputEngine::new(formats, Some(tools(true)), markers, start);
        run(engine, text)
    };
    let call = "<|channel|>commentary to=functions.seat <|constrain|>json<|message|>";
    for (arguments, end) in [
        ("{\"row\": 4,}", "<|call|>"),
        ("{\"row\": ", "<|call|>"),
        ("{\"row\"", ""),
    ] {
        let pieces = read(&format!("{call}{arguments}{end}"));
        assert_eq!(whole(&pieces), arguments);
        assert!(!pieces.contains(&OutputPiece::CallEnd), "{pieces:?}");
        let before = "<|channel|>commentary<|message|>Hi.<|end|><|start|>assistant";
        let pieces = read(&format!("{before}{call}{arguments}{end}"));
        assert_eq!(whole(&pieces), format!("Hi.\n{arguments}"));
    }
}

#[test]
fn an_incomplete_call_in_a_complete_output_is_text() {
    let begun = "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4";
    let pieces = run(engine(Some(ToolFormat::Hermes), None), begun);
    assert_eq!(whole(&pieces), begun);
    assert_eq!(short(&pieces), "seat({\"row\": 4");
    let cut = run_cut(engine(Some(ToolFormat::Hermes), None), begun);
    assert_eq!(whole(&cut), "");
}

#[test]
fn a_call_before_a_broken_call_is_complete() {
    let good = format!("<tool_call>\n{OBJECT}\n</tool_call>");
    let bad = tagged("{\"row\": 4,}");
    let pieces = run(
        engine(Some(ToolFormat::Hermes), None),
        &format!("{good}\n{bad}\n{good}"),
    );
    assert_eq!(whole(&pieces), format!("{CALL}{bad}{CALL}"));
}

#[test]
fn a_list_with_an_item_that_is_not_a_call_keeps_its_bracket() {
    let rests = [", {\"a\": 1}]", ", {\"name\": \"seat\"", ", 5]", " and on"];
    for (format, open, item) in [
        (ToolFormat::Hermes, "<tool_call>", OBJECT),
        (ToolFormat::Mistral, "[TOOL_CALLS]", OBJECT),
        (ToolFormat::Granite, "<|tool_call|>", OBJECT),
        (ToolFormat::Phi4Mini, "functools", OBJECT),
        (ToolFormat::Pythonic, "", "seat(row=4)"),
        (ToolFormat::Lfm2, "<|tool_call_start|>", "seat(row=4)"),
    ] {
        for rest in rests {
            check(
                format,
                &format!("{open}[{item}{rest}"),
                &format!("{CALL}«[{rest}»"),
            );
        }
    }
    check(
        ToolFormat::Hermes,
        &format!("<tool_call>[{OBJECT}</tool_call>"),
        CALL,
    );
    for (open, rest) in [
        ("[", ", {\"a\": 1}]"),
        ("```json\n[\n", ",\n{\"a\": 1}\n]\n```"),
        ("```json\n[", "\nand on"),
        ("<tools>[", ", {\"a\": 1}]</tools>"),
    ] {
        check(
            ToolFormat::Hermes,
            &format!("{open}{OBJECT}{rest}"),
            &format!("{CALL}«[{rest}»"),
        );
    }
    let bad = "{\"name\": \"seat\", \"arguments\": {\"row\": 4,}}";
    let pieces = run(
        engine(Some(ToolFormat::Granite), None),
        &format!("<|tool_call|>[{OBJECT}, {bad}]"),
    );
    assert_eq!(whole(&pieces), format!("{CALL}[, {bad}]"));
}
