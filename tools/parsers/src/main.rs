//! Compares this engine's output parsers with those of SGLang's gateway, on the whole transcripts of `tests/output`.
//! A difference without a known reason is an error.

#[path = "../../../tests/output/cases.rs"]
mod cases;
#[path = "../../../tests/output/messages.rs"]
mod messages;
mod reasons;
#[path = "../../../tests/output/transcript.rs"]
#[allow(dead_code)]
mod transcript;
#[path = "../../../tests/output/values.rs"]
mod values;

use std::collections::BTreeMap;
use std::process::ExitCode;

use futures::executor::block_on;
use reasoning_parser::{DeepSeekR1Parser, Qwen3Parser, ReasoningParser};
use serde_json::Value;
use souffleur_output::output::{OutputFormats, ReasoningFormat, ToolFormat};
use tool_parser::{LlamaParser, MistralParser, PythonicParser, QwenParser, ToolParser};

use cases::{Answer, Case};
use transcript::Mode;

const TRANSCRIPTS: u64 = 2000;

/// The result of parsing a transcript.
#[derive(Debug, PartialEq)]
pub struct Reading {
    pub reasoning: String,
    pub content: String,
    /// Names and arguments.
    pub calls: Vec<(String, Value)>,
}

fn ours(answer: &Answer) -> Reading {
    let call = |call: &cases::Call| (call.name.clone(), parsed(&call.arguments));
    Reading {
        reasoning: answer.reasoning.clone(),
        content: answer.content.clone(),
        calls: answer.calls.iter().map(call).collect(),
    }
}

fn parsed(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments))
}

/// A parser of the gateway, with this engine's name of the format.
enum Peer {
    Calls(ToolFormat, Box<dyn ToolParser>),
    Reasoning(ReasoningFormat, fn(&str) -> Reading),
}

impl Peer {
    fn formats(&self) -> OutputFormats {
        match self {
            Self::Calls(format, _) => OutputFormats {
                tool: Some(*format),
                reasoning: None,
            },
            Self::Reasoning(format, _) => OutputFormats {
                tool: None,
                reasoning: Some(*format),
            },
        }
    }

    fn read(&self, text: &str) -> Reading {
        match self {
            Self::Calls(_, parser) => with_tools(parser.as_ref(), text),
            Self::Reasoning(_, read) => read(text),
        }
    }
}

fn with_tools(parser: &dyn ToolParser, text: &str) -> Reading {
    let (content, calls) = match block_on(parser.parse_complete(text)) {
        Ok(read) => read,
        Err(_) => (text.to_owned(), Vec::new()),
    };
    let calls = calls.into_iter().map(|call| call.function);
    Reading {
        reasoning: String::new(),
        content,
        calls: calls
            .map(|call| (call.name, parsed(&call.arguments)))
            .collect(),
    }
}

fn with_reasoning(mut parser: impl ReasoningParser, text: &str) -> Reading {
    let read = parser.detect_and_parse_reasoning(text).unwrap_or_default();
    Reading {
        reasoning: read.reasoning_text,
        content: read.normal_text,
        calls: Vec::new(),
    }
}

/// Compares all transcripts of a format; returns how many differences have no reason.
fn compare(peer: &Peer) -> usize {
    let formats = peer.formats();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut n_equal, mut n_unexplained) = (0, 0);
    for seed in 0..TRANSCRIPTS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let case = Case::new(formats, Mode::Text, &mut rng);
        let text = case.transcript.to_text();
        let ours = ours(&Answer::of(&case.transcript.read(&[])));
        let theirs = peer.read(&text);
        if ours == theirs {
            n_equal += 1;
        } else if let Some(reason) = reasons::find(formats, &text, &ours, &theirs) {
            *reasons.entry(reason).or_default() += 1;
        } else {
            n_unexplained += 1;
            println!("{formats:?} {text:?}\nours   {ours:?}\ntheirs {theirs:?}\n");
        }
    }
    println!("{formats:?}: {n_equal} equal, {n_unexplained} unexplained");
    for (reason, n) in reasons {
        println!("  {n:5} {reason}");
    }
    n_unexplained
}

fn main() -> ExitCode {
    let peers = [
        Peer::Calls(ToolFormat::Hermes, Box::new(QwenParser::new())),
        Peer::Calls(ToolFormat::Llama3, Box::new(LlamaParser::new())),
        Peer::Calls(ToolFormat::Pythonic, Box::new(PythonicParser::new())),
        Peer::Calls(ToolFormat::Mistral, Box::new(MistralParser::new())),
        Peer::Reasoning(ReasoningFormat::Think, |text| {
            with_reasoning(Qwen3Parser::new(), text)
        }),
        Peer::Reasoning(ReasoningFormat::DeepSeekR1, |text| {
            with_reasoning(DeepSeekR1Parser::new(), text)
        }),
    ];
    let n_unexplained: usize = peers.iter().map(compare).sum();
    match n_unexplained {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
