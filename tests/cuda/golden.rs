//! Tokens and log probabilities are the CPU executor's.
//!
//! In f32 every token is the same, and its log probability within [`F32_TOLERANCE`]: sums are taken in another order. In
//! bfloat16 activations are rounded at other places, so that tokens which are nearly as likely may change places; there
//! the CPU is asked how likely it finds each token that the GPU chose, after those that the GPU chose before.

use std::path::Path;

use futures_util::future::join_all;
use souffleur::config::{Dtype, EngineConfig};
use souffleur::executor::LogprobWish;
use souffleur::request::{Event, Prompt};

use crate::model::{fixture, with_large_heads};
use crate::requests::{Bits, REQUESTS, SHARED_TOKENS, at_once, one_after_another, request};
use crate::setups::{
    BF16_PAGES_OF_1, BF16_PAGES_OF_16_GRAPHS, F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, Setup,
    start_on_cpu,
};
use crate::world::{World, collect, within};

/// In nats.
const F32_TOLERANCE: f32 = 2e-4;
/// In nats; bfloat16 has 8 bits.
const BF16_TOLERANCE: f32 = 0.1;

type Outputs = Vec<(Bits, u32)>;

fn tokens(output: &(Bits, u32)) -> Vec<u32> {
    output.0.iter().map(|bit| bit.0).collect()
}

/// What the CPU says: what it generates, and an engine to ask.
struct Reference {
    world: World,
    outputs: Outputs,
}

impl Reference {
    async fn new(setup: &Setup, model: &Path) -> Self {
        let world = start_on_cpu(setup.config(model));
        Self {
            outputs: one_after_another(&world).await,
            world,
        }
    }

    /// How likely the output of a request is, token by token.
    async fn scored(&self, index: u32, output: &[u32]) -> Vec<f32> {
        let mut request = request(index);
        let Prompt::Tokens(prompt) = &request.prompt else {
            panic!("{request:?}")
        };
        let wish = LogprobWish {
            start: Some(prompt.len() as u32 - 1),
            ..Default::default()
        };
        request.prompt = Prompt::Tokens(prompt.iter().chain(output).copied().collect());
        request.logprobs = Some(wish);
        request.sampling.max_new_tokens = 1;
        let mut generation = self.world.generate(request);
        let mut scored = Vec::new();
        loop {
            match within(generation.next()).await.unwrap() {
                Event::Delta(delta) => scored.extend(delta.input_logprobs),
                Event::Finished(end) => {
                    scored.extend(end.delta.input_logprobs);
                    break;
                }
                other => panic!("ended with {other:?}"),
            }
        }
        // The first token of the wished range comes without one.
        let scored = scored.split_off(scored.len() - output.len());
        let found = scored.iter().map(|entry| entry.token);
        assert_eq!(found.collect::<Vec<_>>(), output);
        scored.iter().map(|entry| entry.logprob.unwrap()).collect()
    }

    async fn check(&self, setup: &Setup, got: &Outputs, what: &str) {
        for (index, (got, expected)) in (0..).zip(got.iter().zip(&self.outputs)) {
            let what = format!("{setup:?}, {what}, request {index}");
            let (output, likely) = match setup.dtype {
                Dtype::Float32 => {
                    assert_eq!(tokens(got), tokens(expected), "{what}");
                    let likely = expected.0.iter().map(|bit| f32::from_bits(bit.1));
                    (expected.0.len(), likely.collect())
                }
                _ => (expected.0.len(), self.scored(index, &tokens(got)).await),
            };
            assert_eq!(got.0.len(), output, "{what}");
            for (place, (got, expected)) in got.0.iter().zip(&likely).enumerate() {
                let got = f32::from_bits(got.1);
                assert!(
                    (got - expected).abs() <= tolerance(setup),
                    "{what}, token {place}: log probability {got}, {expected} on the CPU"
                );
            }
        }
    }
}

fn tolerance(setup: &Setup) -> f32 {
    match setup.dtype {
        Dtype::Float32 => F32_TOLERANCE,
        _ => BF16_TOLERANCE,
    }
}

async fn check(setup: Setup, model: &Path) {
    let reference = Reference::new(&setup, model).await;
    let world = setup.start_on_gpu(setup.config(model));
    let alone = one_after_another(&world).await;
    let reused = SHARED_TOKENS / setup.page_size * setup.page_size;
    assert!(alone[1..].iter().all(|(_, cached)| *cached >= reused));
    reference.check(&setup, &alone, "alone").await;
    let together = at_once(&world).await;
    reference.check(&setup, &together, "in a batch").await;
    world.assert_whole().await;
    world.stop().await;
    check_mixed(&setup, model, &reference).await;
    reference.world.stop().await;
}

/// Prompts in small chunks, decodes riding along.
async fn check_mixed(setup: &Setup, model: &Path, reference: &Reference) {
    let world = setup.start_on_gpu(EngineConfig {
        enable_mixed_chunk: true,
        chunked_prefill_size: 32,
        disable_radix_cache: true,
        ..setup.config(model)
    });
    // Requests that want log probabilities keep a step to themselves.
    let runs = (0..REQUESTS).map(|index| {
        let mut request = request(index);
        request.logprobs = None;
        collect(world.generate(request))
    });
    for (index, (got, expected)) in (0..).zip(join_all(runs).await.iter().zip(&reference.outputs)) {
        match setup.dtype {
            Dtype::Float32 => assert_eq!(got.tokens, tokens(expected), "mixed, request {index}"),
            _ => assert_eq!(got.tokens.len(), expected.0.len(), "mixed, request {index}"),
        }
    }
    let stats = world.assert_whole().await;
    assert!(stats.mixed_steps > 0, "{setup:?}: {stats:?}");
    world.stop().await;
}

#[tokio::test]
async fn f32_with_pages_of_1_and_graphs() {
    check(F32_PAGES_OF_1_GRAPHS, &fixture("llama")).await;
    check(F32_PAGES_OF_1_GRAPHS, &fixture("qwen2")).await;
}

#[tokio::test]
async fn f32_with_pages_of_16() {
    check(F32_PAGES_OF_16, &fixture("qwen3")).await;
    check(F32_PAGES_OF_16, &fixture("mistral")).await;
}

#[tokio::test]
async fn bf16_with_pages_of_16_and_graphs() {
    check(BF16_PAGES_OF_16_GRAPHS, with_large_heads().path()).await;
    check(BF16_PAGES_OF_16_GRAPHS, &fixture("llama")).await;
}

#[tokio::test]
async fn bf16_with_pages_of_1() {
    check(BF16_PAGES_OF_1, with_large_heads().path()).await;
    check(BF16_PAGES_OF_1, &fixture("qwen2-window")).await;
}
