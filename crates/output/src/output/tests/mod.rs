//! Tests of tool calls and reasoning in every format.

mod broken;
mod deepseek;
mod endings;
mod gemma4;
mod glm;
mod gpt_oss;
mod granite;
mod hermes;
mod lfm2;
mod llama3;
mod loose;
mod mistral;
mod pythonic;
mod qwen3_coder;
mod reasoning;
mod tokens;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn engine(tool: Option<ToolFormat>, reasoning: Option<ReasoningFormat>) -> OutputEngine {
    let formats = OutputFormats { tool, reasoning };
    let markers = Arc::new(Markers::default());
    OutputEngine::new(formats, Some(tools(true)), markers, OutputStart::default())
}

fn tools(parallel: bool) -> Arc<ToolUse> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "row": {"type": "integer"},
            "who": {"type": "string"},
            "window": {"type": "boolean"},
            "price": {"type": ["number", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "meal": {"$ref": "#/$defs/meal"},
            "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        },
        "$defs": {"meal": {"type": "object"}},
    });
    Arc::new(ToolUse {
        tools: vec![Tool {
            name: "seat".to_owned(),
            description: None,
            parameters: Some(parameters),
            strict: false,
        }],
        choice: ToolChoice::Auto,
        parallel,
    })
}

fn run(mut engine: OutputEngine, text: &str) -> Vec<OutputPiece> {
    let mut pieces = Vec::new();
    engine.push_text(text, &mut pieces);
    engine.finish(OutputEnding::Whole, &mut pieces);
    pieces
}

fn run_cut(mut engine: OutputEngine, text: &str) -> Vec<OutputPiece> {
    let mut pieces = Vec::new();
    engine.push_text(text, &mut pieces);
    engine.finish(OutputEnding::Cut, &mut pieces);
    pieces
}

/// A summary of the pieces: `«content»`, `‹reasoning›`, `name(arguments` and `)` for a complete call.
fn short(pieces: &[OutputPiece]) -> String {
    let piece = |piece: &OutputPiece| match piece {
        OutputPiece::Text(text) => format!("«{text}»"),
        OutputPiece::Reasoning(text) => format!("‹{text}›"),
        OutputPiece::CallStart { name } => format!("{name}("),
        OutputPiece::CallArguments(arguments) => arguments.clone(),
        OutputPiece::CallEnd => ")".to_owned(),
        OutputPiece::CallBroken { .. } => String::new(),
    };
    pieces.iter().map(piece).collect()
}

fn check(tool: ToolFormat, text: &str, expected: &str) {
    let engine = engine(Some(tool), Some(ReasoningFormat::Think));
    assert_eq!(short(&run(engine, text)), expected, "{text:?}");
}

/// The content of a non-streaming answer, where broken calls are text, and its complete calls.
fn whole(pieces: &[OutputPiece]) -> String {
    let (mut content, mut open) = (String::new(), String::new());
    for piece in pieces {
        match piece {
            OutputPiece::Text(text) => content.push_str(text),
            OutputPiece::Reasoning(_) => {}
            OutputPiece::CallStart { name } => open = format!("{name}("),
            OutputPiece::CallArguments(text) => open.push_str(text),
            OutputPiece::CallEnd => content.push_str(&format!("{})", std::mem::take(&mut open))),
            OutputPiece::CallBroken { text } => content.push_str(text),
        }
    }
    content
}

fn check_text(tool: ToolFormat, text: &str) {
    check(tool, text, &format!("«{text}»"));
}

#[test]
fn all_names_are_parsed() {
    for name in ToolFormat::names() {
        let format = ToolFormat::parse(name).expect("the name is known");
        assert_eq!(ToolFormat::parse(format.name()), Some(format));
    }
    for name in ReasoningFormat::names() {
        let format = ReasoningFormat::parse(name).expect("the name is known");
        assert_eq!(ReasoningFormat::parse(format.name()), Some(format));
    }
    assert_eq!(ToolFormat::parse("qwen25"), Some(ToolFormat::Hermes));
    assert_eq!(ToolFormat::parse("x"), None);
    assert_eq!(ToolFormat::Hermes.opening(), "<tool_call>");
    assert_eq!(ToolFormat::Mistral.closing(), None);
}

#[test]
fn without_tools_calls_are_text() {
    let formats = OutputFormats {
        tool: Some(ToolFormat::Hermes),
        reasoning: None,
    };
    let engine = OutputEngine::new(
        formats,
        None,
        Arc::new(Markers::default()),
        OutputStart::default(),
    );
    let text = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    assert_eq!(short(&run(engine, text)), format!("«{text}»"));
}

#[test]
fn limits_on_held_input_and_nesting_are_enforced() {
    let long = "x".repeat(MAX_HELD_CHARS);
    check_text(
        ToolFormat::Hermes,
        &format!("<tool_call>{{\"name\":\"{long}\",\"arguments\":{{}}}}</tool_call>"),
    );
    let value = "1".repeat(MAX_VALUE_BYTES + 1);
    check(
        ToolFormat::Qwen3Coder,
        &format!(
            "<tool_call><function=seat><parameter=meal>{value}</parameter></function></tool_call>"
        ),
        &format!("seat({{\"meal\": \"{value}\"}})"),
    );
    let deep = "{\"a\":".to_owned() + &"[".repeat(MAX_DEPTH as usize - 1);
    check(
        ToolFormat::Hermes,
        &format!("<tool_call>{{\"name\":\"f\",\"arguments\":{deep}[1"),
        &format!("f({deep}«[1»"),
    );
}
