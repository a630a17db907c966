//! Tests of the output parser on random sequences of text and tags.

use souffleur_output::output::{OutputFormats, OutputPiece, ReasoningFormat, ToolFormat};

use super::read_in_all_cuts;
use super::transcript::{Mode, Transcript};

const PARTS: [&str; 92] = [
    "a",
    "é",
    "😀",
    " ",
    "\n",
    "\n\n",
    "<",
    "</",
    ">",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    "\"",
    "'",
    "\\",
    ",",
    ":",
    ";",
    "=",
    "-",
    "1",
    ".5",
    "True",
    "null",
    "name",
    "\"name\"",
    "\"name\": \"f\"",
    "{\"name\": \"f\", ",
    "\"arguments\": {",
    "\"parameters\":",
    "f(",
    "x=",
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "<function=",
    "f>",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|python_start|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "```",
    "json",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "assistant",
    "analysis",
    "to=functions.f",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "call:f{",
    "<|channel>",
    "<channel|>",
    "```json\n",
    "\n```",
    "{\"name\": \"seat\", \"arguments\": {}}",
    "{\"name\": \"seat\", ",
    "\"seat\"",
    "<tools>",
    "</tools>",
    "<function=seat>",
    "functools",
];

const FORMATS: [ToolFormat; 14] = [
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
    ToolFormat::GptOss,
    ToolFormat::Gemma4,
    ToolFormat::Granite,
    ToolFormat::Phi4Mini,
];

fn garbage(rng: &mut fastrand::Rng) -> String {
    let n_parts = rng.usize(1..=14);
    (0..n_parts)
        .map(|_| PARTS[rng.usize(0..PARTS.len())])
        .collect()
}

fn has_call(pieces: &[OutputPiece]) -> bool {
    let is_call = |piece: &OutputPiece| matches!(piece, OutputPiece::CallStart { .. });
    pieces.iter().any(is_call)
}

#[test]
fn without_a_call_nothing_is_lost() {
    for tool in FORMATS {
        let formats = OutputFormats {
            tool: Some(tool),
            reasoning: None,
        };
        for seed in 0..3000 {
            let text = garbage(&mut fastrand::Rng::with_seed(seed));
            let pieces = Transcript::of_text(formats, Mode::Text, &text).read(&[]);
            if !has_call(&pieces) {
                assert_eq!(pieces, [OutputPiece::Text(text)], "{tool:?} {seed}");
            }
        }
    }
}

/// The text without reasoning tags and newlines, which the parser drops in some places.
fn without_tags(text: &str) -> String {
    let mut text = text.replace('\n', "");
    loop {
        let shorter = ["<think>", "</think>", "[THINK]", "[/THINK]"]
            .iter()
            .fold(text.clone(), |text, tag| text.replace(tag, ""));
        if shorter == text {
            return text;
        }
        text = shorter;
    }
}

#[test]
fn without_a_call_reasoning_and_content_make_up_the_text() {
    // The parser drops the message headers of gpt-oss.
    let tagged = FORMATS
        .into_iter()
        .filter(|tool| *tool != ToolFormat::GptOss);
    for tool in tagged {
        let reasoning = match tool {
            ToolFormat::Mistral => ReasoningFormat::MistralThink,
            _ => ReasoningFormat::Think,
        };
        let formats = super::with(tool, reasoning);
        for seed in 0..3000 {
            let text = garbage(&mut fastrand::Rng::with_seed(seed));
            let pieces = Transcript::of_text(formats, Mode::Text, &text).read(&[]);
            if has_call(&pieces) {
                continue;
            }
            let parsed: String = pieces
                .iter()
                .map(|piece| match piece {
                    OutputPiece::Text(text) | OutputPiece::Reasoning(text) => text.as_str(),
                    _ => "",
                })
                .collect();
            let without_spaces = |text: &str| text.replace(' ', "");
            assert_eq!(
                without_spaces(&without_tags(&parsed)),
                without_spaces(&without_tags(&text)),
                "{tool:?} {seed} {text:?}"
            );
        }
    }
}

#[test]
fn garbage_gives_the_same_pieces_in_all_cuts() {
    for tool in FORMATS {
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let text = garbage(&mut rng);
            let reasoning = match tool {
                ToolFormat::GptOss => ReasoningFormat::GptOss,
                _ => ReasoningFormat::Think,
            };
            let formats = super::with(tool, reasoning);
            let transcript = Transcript::of_text(formats, super::mode(seed), &text);
            read_in_all_cuts(&transcript, &mut rng);
        }
    }
}
