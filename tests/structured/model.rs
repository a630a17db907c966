//! An engine with a tokenizer for the tests of structured output, and requests to the engine.

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
/// The output length of the two longest requests. To force a retraction, tests send them first: the second is admitted
/// while the first runs, since no pages are reserved for the rest of the first output.
pub const LONGEST_OUTPUT: u32 = 100;
/// A pool size in tokens that holds one of the two requests to its end, but not both.
pub const TIGHT_POOL_TOKENS: usize = 144;

/// Tokens that bring an output closer to its end: `CLOSERS` in any JSON, `PATTERN_CLOSERS` in strings with patterns.
const CLOSERS: [&str; 3] = ["\"", "}", "]"];
const PATTERN_CLOSERS: [&str; 6] = ["@", ":", "Z", " ", ".", "/"];
/// The bias of `PATTERN_CLOSERS` is smaller than that of `CLOSERS` by this many nats.
const PATTERN_DISCOUNT: f32 = 2.0;

pub struct Model {
    pub world: World,
    pub text: Arc<TextModel>,
    pub eos: Vec<u32>,
    /// Biases that make a closing token about as likely as all other tokens together.
    closing: Arc<[(u32, f32)]>,
}

#[derive(Debug)]
pub struct Output {
    pub text: String,
    pub tokens: Vec<u32>,
    /// Bits of their log probabilities, if requested.
    pub logprobs: Vec<u32>,
    pub end: FinishReason,
    pub num_retractions: u32,
}

/// The configuration of an engine on the tiny checkpoint with tool tokens.
pub fn base_config() -> EngineConfig {
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

    /// Like [`Self::start`], with engine parts that the test changes.
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

    /// A request with a prompt that depends on `number`. The request is greedy if the seed is even.
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

    pub fn ask(&self, request: GenerateRequest) -> impl Future<Output = Output> + use<> {
        output(self.world.generate(request))
    }

    /// An engine that runs no step before the sender is dropped.
    pub fn start_gated(config: EngineConfig) -> (Self, crossbeam_channel::Sender<()>) {
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
    pub async fn until_started(&self, requests: usize) {
        self.world.until(|stats| stats.running_requests > 0).await;
        self.world.until_requests(requests).await;
    }

    pub async fn stop(self) {
        self.world.assert_no_leaks().await;
        self.world.stop().await;
    }
}

fn closing(text: &TextModel, eos: &[u32]) -> Arc<[(u32, f32)]> {
    let pieces = text.pieces().expect("the tokenizer is byte-level");
    let likely = (pieces.len() as f32).ln();
    let bias = |(id, piece): (u32, &TokenPiece)| {
        let matches = |closer: &&str| *piece == TokenPiece::Bytes(closer.as_bytes().to_vec());
        match () {
            () if eos.contains(&id) || CLOSERS.iter().any(matches) => Some((id, likely)),
            () if PATTERN_CLOSERS.iter().any(matches) => Some((id, likely - PATTERN_DISCOUNT)),
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

pub async fn output(mut generation: Generation) -> Output {
    let mut output = Output {
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
        output.text.push_str(&delta.text);
        output.tokens.extend(delta.tokens);
        let logprobs = delta.output_logprobs.iter();
        let bits = logprobs.filter_map(|at| at.logprob).map(f32::to_bits);
        output.logprobs.extend(bits);
        output.num_retractions = delta.usage.num_retractions;
        if let Some(end) = end {
            output.end = end;
            return output;
        }
    }
}
