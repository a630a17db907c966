//! Tests of outputs that end inside a call, truncated or complete.

use super::*;

/// A call in each format with tags. The tests truncate it after every character.
const CALLS: [(ToolFormat, &str); 16] = [
    (
        ToolFormat::Hermes,
        "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4}}\n</tool_call>",
    ),
    (
        ToolFormat::Qwen3Coder,
        "<tool_call>\n<function=seat>\n<parameter=row>\n4\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        ToolFormat::Llama3,
        "<|python_tag|>{\"name\": \"seat\", \"parameters\": {\"row\": 4}}",
    ),
    (
        ToolFormat::Pythonic,
        "<|python_start|>[seat(row=4)]<|python_end|>",
    ),
    (
        ToolFormat::Mistral,
        "[TOOL_CALLS] [{\"name\": \"seat\", \"arguments\": {\"row\": 4}}]",
    ),
    (ToolFormat::Mistral, "[TOOL_CALLS]seat[ARGS]{\"row\": 4}"),
    (
        ToolFormat::Mistral,
        "[TOOL_CALLS]seat[CALL_ID]123456789[ARGS]{\"row\": 4}",
    ),
    (
        ToolFormat::Lfm2,
        "<|tool_call_start|>[seat(row=4)]<|tool_call_end|>",
    ),
    (
        ToolFormat::Glm45,
        "<tool_call>seat\n<arg_key>row</arg_key>\n<arg_value>4</arg_value>\n</tool_call>",
    ),
    (
        ToolFormat::Glm47,
        "<tool_call>seat<arg_key>row</arg_key><arg_value>4</arg_value></tool_call>",
    ),
    (
        ToolFormat::DeepSeekV3,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>seat\n```json\n{\"row\": 4}\n```<｜tool▁call▁end｜>",
    ),
    (
        ToolFormat::DeepSeekV31,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>seat<｜tool▁sep｜>{\"row\": 4}<｜tool▁call▁end｜>",
    ),
    (
        ToolFormat::Gemma4,
        "<|tool_call>call:seat{row:4}<tool_call|>",
    ),
    (
        ToolFormat::Granite,
        "<|tool_call|>[{\"name\": \"seat\", \"arguments\": {\"row\": 4}}]",
    ),
    (
        ToolFormat::Phi4Mini,
        "<|tool_call|>[{\"name\": \"seat\", \"arguments\": {\"row\": 4}}]<|/tool_call|>",
    ),
    (
        ToolFormat::Hermes,
        "```json\n{\"name\": \"seat\", \"arguments\": {\"row\": 4}}\n```",
    ),
];

fn content_of(pieces: &[OutputPiece]) -> String {
    let text = |piece: &OutputPiece| match piece {
        OutputPiece::Text(text) => text.clone(),
        _ => String::new(),
    };
    pieces.iter().map(text).collect()
}

fn arguments(pieces: &[OutputPiece]) -> Vec<Value> {
    let (mut whole, mut open) = (Vec::new(), String::new());
    for piece in pieces {
        match piece {
            OutputPiece::CallStart { .. } => open.clear(),
            OutputPiece::CallArguments(text) => open.push_str(text),
            OutputPiece::CallEnd => whole.push(serde_json::from_str(&open).expect("JSON")),
            OutputPiece::Text(_) | OutputPiece::Reasoning(_) => {}
            OutputPiece::CallBroken { .. } => panic!("{pieces:?}"),
        }
    }
    whole
}

#[test]
fn a_truncated_call_leaves_no_markers_and_is_not_complete() {
    for (format, call) in CALLS {
        let ends = call.char_indices().map(|(at, _)| at);
        for end in ends.chain([call.len()]) {
            let output = format!("Well.\n{}", &call[..end]);
            let pieces = run_cut(engine(Some(format), None), &output);
            let text = content_of(&pieces);
            // A partial tag may be text, and so may a fence.
            let opening = call.split_at(call.find(['>', ']', '{']).unwrap_or(0)).0;
            let rest = text
                .strip_prefix("Well.")
                .expect("the text before the call is kept")
                .trim_start();
            assert!(
                opening.starts_with(rest) || call.starts_with("```") && call.starts_with(rest),
                "{text:?} of {output:?}"
            );
            assert!(!text.contains("\"arguments\""), "{text:?} of {output:?}");
            for whole in arguments(&pieces) {
                assert_eq!(whole, json!({"row": 4}), "{output:?}");
            }
        }
    }
}

#[test]
fn a_truncated_second_call_leaves_the_first() {
    for (format, call) in CALLS {
        if call.starts_with("[TOOL_CALLS] [") || call.starts_with("<|tool_call|>") {
            continue;
        }
        for end in call.char_indices().map(|(at, _)| at) {
            let pieces = run_cut(
                engine(Some(format), None),
                &format!("{call}{}", &call[..end]),
            );
            assert!(!arguments(&pieces).is_empty(), "{call:?} {end}");
            let text = content_of(&pieces);
            let is_fence = call.starts_with("```") && call.starts_with(text.trim_start());
            assert!(
                text.is_empty() || is_fence,
                "{text:?} of {call:?} and {end}"
            );
        }
    }
}

#[test]
fn an_answer_that_must_call_has_no_text_of_a_call() {
    for (format, call) in CALLS {
        let mut required = (*tools(true)).clone();
        required.choice = ToolChoice::Required;
        let required = Arc::new(required);
        for end in call.char_indices().map(|(at, _)| at) {
            for ending in [OutputEnding::Cut, OutputEnding::Whole] {
                let formats = OutputFormats {
                    tool: Some(format),
                    reasoning: None,
                };
                let (markers, start) = (Arc::new(Markers::default()), OutputStart::default());
                let mut engine = OutputEngine::new(formats, Some(required.clone()), markers, start);
                let mut pieces = Vec::new();
                engine.push_text(&call[..end], &mut pieces);
                engine.finish(ending, &mut pieces);
                let text = content_of(&pieces);
                assert!(
                    text.is_empty() || call.starts_with("```"),
                    "{text:?} of {call:?}"
                );
            }
        }
    }
}

#[test]
fn reasoning_of_an_answer_that_must_call_is_whole() {
    let mut required = (*tools(true)).clone();
    required.choice = ToolChoice::Required;
    let formats = OutputFormats {
        tool: Some(ToolFormat::Hermes),
        reasoning: Some(ReasoningFormat::Think),
    };
    let (markers, start) = (Arc::new(Markers::default()), OutputStart::default());
    let engine = OutputEngine::new(formats, Some(Arc::new(required)), markers, start);
    assert_eq!(short(&run_cut(engine, "<think>a <")), "‹a <›");
}

#[test]
fn an_opening_at_the_end_of_a_complete_answer_is_text() {
    let text = "It writes <tool_call>\n{\"name\": \"se";
    assert_eq!(
        short(&run(engine(Some(ToolFormat::Hermes), None), text)),
        format!("«{text}»")
    );
    assert_eq!(
        short(&run_cut(engine(Some(ToolFormat::Hermes), None), text)),
        "«It writes »"
    );
    let prose = "It writes <tool";
    assert_eq!(
        short(&run_cut(engine(Some(ToolFormat::Hermes), None), prose)),
        format!("«{prose}»")
    );
}

#[test]
fn without_a_tag_only_the_beginning_of_a_tools_call_is_dropped() {
    for (format, cut) in [
        (ToolFormat::Llama3, "{\"name\": \"seat\", \"param"),
        (ToolFormat::Pythonic, "[seat(ro"),
        (ToolFormat::Hermes, "```json\n{\"name\": \"seat\""),
    ] {
        assert_eq!(short(&run_cut(engine(Some(format), None), cut)), "");
        let other = cut.replace("seat", "Ada");
        let pieces = run_cut(engine(Some(format), None), &other);
        assert_eq!(short(&pieces), format!("«{other}»"));
        assert_eq!(
            short(&run(engine(Some(format), None), cut)),
            format!("«{cut}»")
        );
    }
}
