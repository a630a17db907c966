//! A megabyte of what an engine may stumble over, again and again.

use souffleur::state::output::{OutputPiece, ReasoningFormat, ToolFormat};

use super::transcript::{Mode, Transcript};

const BYTES: usize = 1 << 20;

fn check(tool: ToolFormat, unit: &str) {
    let formats = super::with(tool, ReasoningFormat::Think);
    let transcript = Transcript::of_text(formats, Mode::Text, &unit.repeat(BYTES / unit.len()));
    // Quadratic time would be hours for all of them.
    let pieces = transcript.read(&[]);
    let n_bytes: usize = pieces.iter().map(bytes).sum();
    assert!(n_bytes <= 2 * BYTES, "{tool:?} {unit:?}: {n_bytes} bytes");
}

fn bytes(piece: &OutputPiece) -> usize {
    match piece {
        OutputPiece::Text(text) | OutputPiece::Reasoning(text) => text.len(),
        OutputPiece::CallArguments(text) => text.len(),
        OutputPiece::CallStart { name } => name.len(),
        OutputPiece::CallEnd => 0,
    }
}

#[test]
fn repetitions_lose_nothing_and_end_soon() {
    let hermes = [
        "<tool_call",
        "<tool_call>",
        "<tool_call>{\"",
        "<tool_call>{\"name\":\"",
        "<tool_call>{\"x\":\"<tool_call>{\",\"",
        "<tool_call>{\"x\":[\"",
        "<tool_call> {",
        "\n",
        " ",
        "<<<<<<<<",
        "</think><think>",
        "<tool_call>{\"arguments\":{\"a\":\"<tool_call>\"},\"b\":1,",
    ];
    for unit in hermes {
        check(ToolFormat::Hermes, unit);
    }
    for unit in [
        "<tool_call><function=",
        "<tool_call><function=f><parameter=a>\n</parameter>",
        "<tool_call><function=f><parameter=meal>\n\n</parameter>\n ",
        "<tool_call>\n<function=f>\n",
    ] {
        check(ToolFormat::Qwen3Coder, unit);
    }
    for unit in [
        "{",
        "{\"name\":",
        "<|python_tag|>{\"x\":[",
        "<|python_tag|>;",
    ] {
        check(ToolFormat::Llama3, unit);
    }
    for unit in [
        "[",
        "[f(a=[",
        "[f(a=\"",
        "<|python_start|>[f(",
        "<|python_start|>[ ",
    ] {
        check(ToolFormat::Pythonic, unit);
    }
    for unit in [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS][{\"x\":[",
        "[TOOL_CALLS][{\"x\":[[TOOL_CALLS][{},",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]{\"",
    ] {
        check(ToolFormat::Mistral, unit);
    }
}
