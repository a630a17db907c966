//! An engine with a tokenizer, and requests to it.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use souffleur_config::EngineConfig;
use souffleur_engine::{Engine, EngineParts, Generation, Progress};
use souffleur_model::text::{TextModel, TokenPiece};
use souffleur_request::{Event, FinishReason, GenerateRequest, Prompt};
use souffleur_state::grammar::{Constraint, JsonWhitespace};

use crate::world::{Gated, World, within};

/// A grammar that allows any text.
pub const EVERY_TEXT: &str = "(?s:.*)";
/// Output tokens of two requests that are sent first and have the longest outputs. The second is sent while the first
/// runs, without pages reserved for the rest of the first.
pub const GROWING_TOKENS: u32 = 100;
/// A pool size in tokens that holds either of them to its end, but not both.
pub const TIGHT_POOL_TOKENS: usize = 144;

/// Texts of tokens that bring an output nearer to its end: for JSON values, and for strings with patterns.
const CLOSERS: [&str; 3] = ["\"", "}", "]"];
const PATTERN_CLOSERS: [&str; 6] = ["@", ":", "Z", " ", ".", "/"];
/// By how much the bias of the latter is smaller, in nats.
const PATTERN_DISCOUNT: f32 = 2.0;

pub struct Model {
    pub world: World,
    pub text: Arc<TextModel>,
    pub eos: Vec<u32>,
    /// Biases that make a closing token about as likely as all other tokens together.
    closing: Arc<[(u32, f32)]>,
}

/// The whole output of a request.
#[derive(Debug)]
pub struct Said {
    pub text: String,
    pub tokens: Vec<u32>,
    /// Bits of their log probabilities, if requested.
    pub logprobs: Vec<u32>,
    pub end: FinishReason,
    pub num_retractions: u32,
}

/// The configuration of an engine on the tiny checkpoint with tool tokens.
pub fn agents() -> EngineConfig {
    EngineConfig {
        model_path: Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("tests/fixtures/qwen3-agents"),
        max_total_tokens: Some(16_384),
        max_running_requests: Some(32),
        context_length: Some(2048),
        threads: 2,
        ..EngineConfig::default()
    }
}

impl Model {
    pub fn start(config: EngineConfig) -> Self {
        Self::start_with(config, |parts| parts)
    }

    /// As [`Self::start`], with parts that the test changes.
    pub fn start_with(
        config: EngineConfig,
        change: impl FnOnce(EngineParts) -> EngineParts,
    ) -> Self {
        let parts = EngineParts::from_model(&config, Progress::silent());
        let parts = change(parts.expect("the model exists"));
        let text = parts.text.clone().expect("the model has a tokenizer");
        let eos = parts.info.eos_token_ids.clone();
        Self {
            closing: closing(&text, &eos),
            text,
            eos,
            world: World {
                engine: Engine::start_with(config, parts).expect("the model loads"),
            },
        }
    }

    /// A request whose prompt follows from its number, constrained or not; greedy if the seed is even.
    pub fn request(
        &self,
        number: u64,
        seed: u64,
        constraint: Option<Constraint>,
    ) -> GenerateRequest {
        let token = |place: u64| 100 + ((number * 31 + place * 17) % 300) as u32;
        let prompt: Vec<u32> = (0..6 + number % 9).map(token).collect();
        let mut request = GenerateRequest::new(Prompt::Tokens(prompt.into()));
        request.constraint = constraint.map(Arc::new);
        let sampling = &mut request.sampling;
        sampling.max_new_tokens = 400;
        sampling.sampling_seed = Some(seed);
        sampling.logit_bias = self.closing.clone();
        if seed.is_multiple_of(2) {
            sampling.temperature = 0.0;
            // With random weights, the most likely tokens repeat.
            sampling.frequency_penalty = 0.5;
        }
        request
    }

    pub fn ask(&self, request: GenerateRequest) -> impl Future<Output = Said> + use<> {
        said(self.world.generate(request))
    }

    /// An engine that runs no step before the sender is dropped.
    pub fn start_behind(config: EngineConfig) -> (Self, crossbeam_channel::Sender<()>) {
        let (open, gate) = crossbeam_channel::bounded(0);
        let model = Self::start_with(config, |mut parts: EngineParts| {
            let make = parts.executor.clone();
            parts.executor = Arc::new(move || {
                Ok(Box::new(Gated {
                    inner: make()?,
                    gate: Some(gate.clone()),
                }))
            });
            parts
        });
        (model, open)
    }

    /// Waits until this many requests are in flight and the first is in a step.
    pub async fn until_begun(&self, requests: usize) {
        self.world.until(|stats| stats.running_requests > 0).await;
        self.world.until_inside(requests).await;
    }

    pub async fn stop(self) {
        self.world.assert_whole().await;
        self.world.stop().await;
    }
}

fn closing(text: &TextModel, eos: &[u32]) -> Arc<[(u32, f32)]> {
    let pieces = text.pieces().expect("the tokenizer is byte-level");
    let likely = (pieces.len() as f32).ln();
    let bias = |(id, piece): (u32, &TokenPiece)| {
        let is = |closer: &&str| *piece == TokenPiece::Bytes(closer.as_bytes().to_vec());
        match () {
            () if eos.contains(&id) || CLOSERS.iter().any(is) => Some((id, likely)),
            () if PATTERN_CLOSERS.iter().any(is) => Some((id, likely - PATTERN_DISCOUNT)),
            () => None,
        }
    };
    (0..).zip(&pieces).filter_map(bias).collect()
}

/// A schema, with the usual white space.
pub fn schema(schema: &Value) -> Constraint {
    Constraint::JsonSchema {
        schema: Arc::new(schema.clone()),
        whitespace: JsonWhitespace::default(),
        is_strict: false,
    }
}

pub async fn said(mut generation: Generation) -> Said {
    let mut said = Said {
        text: String::new(),
        tokens: Vec::new(),
        logprobs: Vec::new(),
        end: FinishReason::Abort,
        num_retractions: 0,
    };
    loop {
        let event = within(generation.next()).await;
        let (delta, end) = match event.expect("the stream ends with a terminal event") {
            Event::Delta(delta) => (delta, None),
            Event::Finished(end) => (end.delta, Some(end.reason)),
            other => panic!("ended with {other:?}"),
        };
        said.text.push_str(&delta.text);
        said.tokens.extend(delta.tokens);
        let logprobs = delta.output_logprobs.iter();
        let bits = logprobs.filter_map(|at| at.logprob).map(f32::to_bits);
        said.logprobs.extend(bits);
        said.num_retractions = delta.usage.num_retractions;
        if let Some(end) = end {
            said.end = end;
            return said;
        }
    }
}
