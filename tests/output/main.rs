//! Tests that the output parser gives the intended pieces, and the same pieces however an output is cut.
//!
//! Every transcript is read whole, one character at a time, in all cuts in two, and in random cuts.

mod cases;
mod garbage;
mod hostile;
mod messages;
mod transcript;
mod values;

use std::sync::LazyLock;

use souffleur_output::output::{OutputFormats, OutputPiece, ReasoningFormat, ToolFormat};

use cases::{Answer, Case};
use transcript::{Mode, Transcript};

const TRANSCRIPTS: u64 = 200;
/// Sets the number of random cuts of each transcript: `SOUFFLEUR_RANDOM_CUTS=1000 cargo test --test output`.
const RANDOM_CUTS: &str = "SOUFFLEUR_RANDOM_CUTS";
const USUAL_RANDOM_CUTS: usize = 200;

fn with(tool: ToolFormat, reasoning: ReasoningFormat) -> OutputFormats {
    OutputFormats {
        tool: Some(tool),
        reasoning: Some(reasoning),
    }
}

fn random_cuts() -> usize {
    static CUTS: LazyLock<usize> = LazyLock::new(|| {
        let cuts = std::env::var(RANDOM_CUTS).ok();
        cuts.map_or(USUAL_RANDOM_CUTS, |cuts| cuts.parse().expect("a number"))
    });
    *CUTS
}

/// Every other transcript has its markers as tokens.
fn mode(seed: u64) -> Mode {
    if seed.is_multiple_of(2) {
        Mode::Text
    } else {
        Mode::Tokens
    }
}

/// Checks that all cuts of a transcript give the same pieces, and returns the pieces.
fn read_in_all_cuts(transcript: &Transcript, rng: &mut fastrand::Rng) -> Vec<OutputPiece> {
    let whole = transcript.read(&[]);
    let n = transcript.len();
    let each: Vec<usize> = (1..n).collect();
    let check = |cuts: &[usize]| {
        let read = transcript.read(cuts);
        assert!(
            read == whole,
            "{transcript:?}\nin the cuts {cuts:?}\n{read:?}\ninstead of\n{whole:?}"
        );
    };
    check(&each);
    each.iter().for_each(|cut| check(&[*cut]));
    for _ in 0..random_cuts() {
        let n_cuts = rng.usize(2..=8);
        let mut cuts: Vec<usize> = (0..n_cuts).map(|_| rng.usize(0..=n)).collect();
        cuts.sort_unstable();
        check(&cuts);
    }
    check_order(&whole);
    whole
}

/// Checks that calls do not interleave, and that only an open call ends.
fn check_order(pieces: &[OutputPiece]) {
    let mut is_open = false;
    for piece in pieces {
        is_open = match piece {
            OutputPiece::CallStart { .. } => true,
            OutputPiece::CallArguments(_) => {
                assert!(is_open, "arguments outside a call: {pieces:?}");
                true
            }
            OutputPiece::CallEnd => {
                assert!(is_open, "an end outside a call: {pieces:?}");
                false
            }
            OutputPiece::CallBroken { text } => {
                assert!(is_open && !text.is_empty(), "no call to break: {pieces:?}");
                false
            }
            OutputPiece::Text(text) | OutputPiece::Reasoning(text) => {
                assert!(!text.is_empty(), "an empty piece: {pieces:?}");
                false
            }
        };
    }
}

/// Checks that valid transcripts give the intended pieces, and corrupted transcripts the same pieces in all cuts.
fn check_format(formats: OutputFormats) {
    for seed in 0..TRANSCRIPTS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let case = Case::new(formats, mode(seed), &mut rng);
        let read = read_in_all_cuts(&case.transcript, &mut rng);
        assert_eq!(
            Answer::of(&read),
            case.answer,
            "seed {seed}\n{:?}",
            case.transcript
        );
        let corrupted = case.transcript.corrupted(&mut rng);
        read_in_all_cuts(&corrupted, &mut rng);
    }
}

#[test]
fn hermes() {
    check_format(with(ToolFormat::Hermes, ReasoningFormat::Think));
}

#[test]
fn qwen3_coder() {
    check_format(with(ToolFormat::Qwen3Coder, ReasoningFormat::Think));
}

#[test]
fn llama3() {
    check_format(with(ToolFormat::Llama3, ReasoningFormat::Think));
}

#[test]
fn pythonic() {
    check_format(with(ToolFormat::Pythonic, ReasoningFormat::DeepSeekR1));
}

#[test]
fn mistral() {
    check_format(with(ToolFormat::Mistral, ReasoningFormat::MistralThink));
}

#[test]
fn lfm2() {
    check_format(with(ToolFormat::Lfm2, ReasoningFormat::Think));
}

#[test]
fn granite() {
    check_format(with(ToolFormat::Granite, ReasoningFormat::Think));
}

#[test]
fn phi4_mini() {
    check_format(with(ToolFormat::Phi4Mini, ReasoningFormat::Think));
}

#[test]
fn glm45() {
    check_format(with(ToolFormat::Glm45, ReasoningFormat::Think));
}

#[test]
fn glm47() {
    check_format(with(ToolFormat::Glm47, ReasoningFormat::Think));
}

#[test]
fn deepseekv3() {
    check_format(with(ToolFormat::DeepSeekV3, ReasoningFormat::Think));
}

#[test]
fn deepseekv31() {
    check_format(with(ToolFormat::DeepSeekV31, ReasoningFormat::Think));
}

#[test]
fn gemma4() {
    check_format(with(ToolFormat::Gemma4, ReasoningFormat::Gemma4));
}

#[test]
fn gpt_oss() {
    check_format(with(ToolFormat::GptOss, ReasoningFormat::GptOss));
}

#[test]
fn reasoning_without_tools() {
    for reasoning in [
        ReasoningFormat::Think,
        ReasoningFormat::DeepSeekR1,
        ReasoningFormat::MistralThink,
        ReasoningFormat::GptOss,
    ] {
        check_format(OutputFormats {
            tool: None,
            reasoning: Some(reasoning),
        });
    }
}
