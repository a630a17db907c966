//! Tests that constrained outputs are bit for bit the same under any schedule: in a batch, chunked, retracted,
//! preempted, and after lost steps.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::json;
use souffleur_base::error::StepError;
use souffleur_config::EngineConfig;
use souffleur_engine::Generation;
use souffleur_executor::{DeviceLost, Executor};
use souffleur_model::text::TokenPiece;
use souffleur_request::{FinishReason, GenerateRequest};
use souffleur_state::grammar::Constraint;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::step::{StepOutput, StepPlan};

use crate::model::{
    EVERY_TEXT, LONGEST_OUTPUT, Model, TIGHT_POOL_TOKENS, base_config, output, schema,
};

const REQUESTS: u64 = 16;
/// Number of requests that run at once in the test of preemption.
const RUNNING: u64 = 4;
/// Requests whose grammar allows any text, and which generate [`LONGEST_OUTPUT`] tokens.
const LONGEST: [u64; 2] = [6, 14];
/// The numbers of the steps whose results are lost, by different causes.
const LOST: [u64; 2] = [10, 30];

/// Tokens, the bits of their log probabilities, text and end.
type Bits = (Vec<u32>, Vec<u32>, String, FinishReason);

fn config() -> EngineConfig {
    EngineConfig {
        context_length: Some(256),
        max_running_requests: Some(16),
        ..base_config()
    }
}

/// The constraint of the request with this number; every fourth request has none.
fn constraint(number: u64) -> Option<Constraint> {
    match number % 8 {
        0 | 4 => None,
        1 => Some(schema(
            &json!({"type": "array", "items": {"type": "string"}, "minItems": 3}),
        )),
        2 => Some(Constraint::Regex("[a-z]{2,9}( [a-z]{2,9}){8,40}".into())),
        3 => Some(schema(&json!({"type": "object", "properties": {
            "name": {"type": "string", "minLength": 12}, "tags": {"type": "array", "items": {"type": "string"},
            "minItems": 2}, "size": {"type": "number"}}, "required": ["name", "tags", "size"]}))),
        5 => Some(schema(
            &json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
            "value": {"type": "string", "minLength": 4}, "next": {"$ref": "#/$defs/node"}}, "required": ["value", "next"]}}}),
        )),
        6 => Some(Constraint::Regex(EVERY_TEXT.into())),
        _ => Some(Constraint::Choice(
            ["as you like it", "much ado about nothing", "as you were"]
                .map(str::to_owned)
                .into(),
        )),
    }
}

/// A long request. The scheduler reserves pages for only a part of its output.
fn request(model: &Model, number: u64) -> GenerateRequest {
    let mut request = model.request(number, number, constraint(number));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 40 + 5 * (number % 8) as u32;
    if LONGEST.contains(&number) {
        sampling.max_new_tokens = LONGEST_OUTPUT;
    }
    sampling.min_new_tokens = sampling.max_new_tokens;
    sampling.logit_bias = Arc::default();
    if number % 4 >= 2 {
        sampling.repetition_penalty = 1.1;
        sampling.frequency_penalty = 0.2;
        sampling.top_p = 0.95;
    }
    request
}

async fn bits(generation: Generation) -> Bits {
    let output = output(generation).await;
    (output.tokens, output.logprobs, output.text, output.end)
}

/// The outputs of the requests, each alone in an engine without a prefix cache.
async fn reference() -> Vec<Bits> {
    let model = Model::start(EngineConfig {
        disable_radix_cache: true,
        ..config()
    });
    let mut all = Vec::new();
    for number in 0..REQUESTS {
        all.push(bits(model.world.generate(request(&model, number))).await);
    }
    model.stop().await;
    all
}

fn assert_same(got: &[Bits], expected: &[Bits], how: &str) {
    for (number, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got, expected, "{how}, request {number}");
    }
}

/// The order in which requests arrive.
#[derive(Clone, Copy, PartialEq)]
enum Arrival {
    /// All together, but the requests of the lowest priority are in the first step.
    LowestFirst,
    /// One by one, [`LONGEST`] before the others.
    LongestFirst,
}

async fn run(model: &Model, arrival: Arrival, open: crossbeam_channel::Sender<()>) -> Vec<Bits> {
    let mut order: Vec<u64> = (0..REQUESTS).collect();
    if arrival == Arrival::LongestFirst {
        order.sort_by_key(|number| !LONGEST.contains(number));
    }
    let mut sent = Vec::new();
    for number in order {
        if sent.len() == RUNNING as usize {
            // If all requests were sent together, those of the highest priority would run first.
            model.world.until(|stats| stats.running_requests > 0).await;
        }
        let mut request = request(model, number);
        request.priority = Some((number / RUNNING) as i64 * 100);
        sent.push((number, model.world.generate(request)));
        if arrival == Arrival::LongestFirst {
            model.until_started(sent.len()).await;
        }
    }
    model.world.until_requests(sent.len()).await;
    drop(open);
    sent.sort_by_key(|(number, _)| *number);
    join_all(sent.into_iter().map(|(_, generation)| bits(generation))).await
}

#[tokio::test]
async fn schedules_change_no_bit() {
    let expected = reference().await;
    assert!(
        expected.iter().any(|bits| bits.3 == FinishReason::Grammar)
            && expected
                .iter()
                .any(|bits| matches!(bits.3, FinishReason::Length { .. })),
        "{expected:?}"
    );
    let configs = [
        ("in a batch", config()),
        (
            "chunked",
            EngineConfig {
                chunked_prefill_size: 5,
                ..config()
            },
        ),
        (
            "on pages of 16",
            EngineConfig {
                page_size: 16,
                ..config()
            },
        ),
        (
            "retracted",
            EngineConfig {
                max_total_tokens: Some(TIGHT_POOL_TOKENS),
                // Admits all prompts in one step, even on a slow machine.
                max_prefill_step_ms: 0,
                schedule_conservativeness: 0.01,
                ..config()
            },
        ),
        (
            "preempted",
            EngineConfig {
                enable_priority_scheduling: true,
                max_running_requests: Some(RUNNING as usize),
                ..config()
            },
        ),
    ];
    for (how, config) in configs {
        let (model, open) = Model::start_gated(config);
        let arrival = match how {
            "retracted" => Arrival::LongestFirst,
            _ => Arrival::LowestFirst,
        };
        let got = run(&model, arrival, open).await;
        let stats = model.world.assert_no_leaks().await;
        match how {
            "retracted" => assert!(stats.retractions > 0, "{stats:?}"),
            "preempted" => assert!(stats.preemptions > 0, "{stats:?}"),
            _ => (),
        }
        model.stop().await;
        assert_same(&got, &expected, how);
    }
}

/// An executor that loses the results of some steps.
struct Lossy {
    inner: Box<dyn Executor>,
    steps: u64,
}

impl Executor for Lossy {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.steps += 1;
        let output = self.inner.run(plan)?;
        if LOST.contains(&self.steps) {
            Err(StepError::Lost(format!(
                "step {} was forgotten",
                self.steps
            )))
        } else {
            Ok(output)
        }
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}

#[tokio::test]
async fn lost_steps_change_no_bit() {
    let expected = reference().await;
    let model = Model::start_with(config(), |mut parts| {
        let make = parts.executor.clone();
        parts.executor = Arc::new(move || {
            let inner = make()?;
            Ok(Box::new(Lossy { inner, steps: 0 }))
        });
        parts
    });
    let sent = (0..REQUESTS).map(|number| bits(model.world.generate(request(&model, number))));
    assert_same(&join_all(sent).await, &expected, "after lost steps");
    model.stop().await;
}

#[tokio::test]
async fn a_grammar_that_allows_every_text_changes_no_bit() {
    let model = Model::start(config());
    let pieces = model.text.pieces().expect("the tokenizer is byte-level");
    // Only ASCII tokens may be sampled, because markers and incomplete characters are not text.
    let is_text =
        |piece: &TokenPiece| matches!(piece, TokenPiece::Bytes(bytes) if bytes.is_ascii());
    let vocab_size = model.world.engine.model().vocab_size as u32;
    let banned: Arc<[(u32, f32)]> = (0..vocab_size)
        .filter(|&id| !pieces.get(id as usize).is_some_and(is_text) && !model.eos.contains(&id))
        .map(|id| (id, -100.0))
        .collect();
    for number in 0..REQUESTS {
        let ask = |constraint: Option<Constraint>| {
            let mut request = request(&model, number);
            request.constraint = constraint.map(Arc::new);
            request.sampling.min_new_tokens = 0;
            request.sampling.logit_bias = banned.clone();
            bits(model.world.generate(request))
        };
        let unconstrained = ask(None).await;
        let constrained = ask(Some(Constraint::Regex(EVERY_TEXT.into()))).await;
        assert_eq!(constrained, unconstrained, "request {number}");
        assert!(unconstrained.0.len() > 1, "{unconstrained:?}");
    }
    model.stop().await;
}
