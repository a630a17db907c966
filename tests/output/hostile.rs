//! Tests of the output parser on a megabyte of one repeated text that is hard to parse.

use souffleur_output::output::{OutputPiece, ReasoningFormat, ToolFormat};

use super::transcript::{Mode, Transcript};

const BYTES: usize = 1 << 20;

fn check(tool: ToolFormat, unit: &str) {
    let reasoning = match tool {
        ToolFormat::GptOss => ReasoningFormat::GptOss,
        _ => ReasoningFormat::Think,
    };
    let formats = super::with(tool, reasoning);
    let transcript = Transcript::of_text(formats, Mode::Text, &unit.repeat(BYTES / unit.len()));
    // A parser with quadratic time would take hours.
    let pieces = transcript.read(&[]);
    let n_bytes: usize = pieces.iter().map(bytes).sum();
    assert!(n_bytes <= 2 * BYTES, "{tool:?} {unit:?}: {n_bytes} bytes");
}

fn bytes(piece: &OutputPiece) -> usize {
    match piece {
        OutputPiece::Text(text) | OutputPiece::Reasoning(text) => text.len(),
        OutputPiece::CallArguments(text) => text.len(),
        OutputPiece::CallStart { name } => name.len(),
        // The text of a broken call repeats earlier pieces.
        OutputPiece::CallEnd | OutputPiece::CallBroken { .. } => 0,
    }
}

/// Formats, each with texts to repeat.
const REPETITIONS: [(ToolFormat, &[&str]); 11] = [
    (
        ToolFormat::Hermes,
        &[
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
        ],
    ),
    (
        ToolFormat::Hermes,
        &[
            "{",
            "{ ",
            "[{",
            "```",
            "\n```json\n",
            "```json\n{",
            "<tools>",
            "<tools>{",
            "<function=seat>{\"",
            "{\"name\":\"seat\",",
            "{\"name\":\"seat\",\"arguments\":{\"a\":",
            "{\"name\":\"seat\",\"arguments\":{\"a\":\"x ",
            "{\"name\":\"seat\",\"arguments\":{\"a\":[1, ",
            " {\"arguments\":{\"a\":\" {\"name\":\"seat\"}",
            "{\"name\":\"seat\"},",
            "```json\n{\"name\":\"seat\",\"arguments\":{\"a\":\"\n```json\n",
            " {\"name\":\"seat\",\"arguments\":{\"a\":\" {\\\"name\\\":\\\"seat\\\"",
        ],
    ),
    (
        ToolFormat::Qwen3Coder,
        &[
            "\n<parameter=",
            "\n<parameter=row",
            "\n</function>",
            "<tool_call><function=",
            "<tool_call><function=f><parameter=a>\n</parameter>",
            "<tool_call><function=f><parameter=meal>\n\n</parameter>\n ",
            "<tool_call>\n<function=f>\n",
        ],
    ),
    (
        ToolFormat::Llama3,
        &[
            "{",
            "{\"name\":",
            "<|python_tag|>{\"x\":[",
            "<|python_tag|>;",
        ],
    ),
    (
        ToolFormat::Pythonic,
        &[
            "[",
            "[f(a=[",
            "[f(a=\"",
            "<|python_start|>[f(",
            "<|python_start|>[ ",
        ],
    ),
    (
        ToolFormat::Mistral,
        &[
            "[TOOL_CALLS]",
            "[TOOL_CALLS] [",
            "[TOOL_CALLS][{\"x\":[",
            "[TOOL_CALLS][{\"x\":[[TOOL_CALLS][{},",
            "[TOOL_CALLS]f[ARGS]",
            "[TOOL_CALLS]f[ARGS]{\"",
        ],
    ),
    (
        ToolFormat::Lfm2,
        &[
            "<|tool_call_start|>",
            "<|tool_call_start|>[",
            "<|tool_call_start|>[{\"x\":[",
            "<|tool_call_start|>[f(),",
        ],
    ),
    (
        ToolFormat::Granite,
        &[
            "<|tool_call|>",
            "<|tool_call|> [",
            "<|tool_call|>[{\"x\":[",
            "<|tool_call|>[{\"name\": \"f\"},",
            "<|tool_call|>[]<|/tool_call|>",
        ],
    ),
    (
        ToolFormat::Glm45,
        &[
            "<tool_call>f",
            "<tool_call>f<arg_key>",
            "<tool_call>f<arg_key>a</arg_key><arg_value>\n</arg_value>",
            "<tool_call>f<arg_key>meal</arg_key><arg_value></arg_value>\n ",
        ],
    ),
    (
        ToolFormat::DeepSeekV3,
        &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>f\n```json\n",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>f\n```{}\n``",
        ],
    ),
    (
        ToolFormat::GptOss,
        &[
            "<|start|>",
            "<|channel|>",
            "<|channel|>analysis ",
            "<|channel|>analysis<|message|>",
            "<|channel|>commentary to=f<|message|>",
            "<|channel|>commentary to=f<|message|> ",
            "<|end|>\n",
            "<|channel|>commentary to=f<|message|>{\"",
        ],
    ),
];

#[test]
fn repetitions_take_linear_time_and_output() {
    for (tool, units) in REPETITIONS {
        for unit in units {
            check(tool, unit);
        }
    }
}
