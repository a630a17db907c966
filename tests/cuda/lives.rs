//! Requests that are cancelled, retracted, or inside when the device fails.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::join_all;
use souffleur::config::{Dtype, EngineConfig};
use souffleur::engine::{Engine, EngineParts, Progress};
use souffleur::request::{Event, GenerateRequest, Prompt};
use souffleur_cusim::{Device, Fault};

use crate::gpu;
use crate::model::fixture;
use crate::requests::{REQUESTS, VOCAB, long_request, request};
use crate::setups::{
    BF16_PAGES_OF_1, BF16_PAGES_OF_16_GRAPHS, F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, Setup,
    load_on,
};
use crate::world::{World, collect, within};

const SETUPS: [Setup; 4] = [
    F32_PAGES_OF_1_GRAPHS,
    F32_PAGES_OF_16,
    BF16_PAGES_OF_16_GRAPHS,
    BF16_PAGES_OF_1,
];
/// Requests that run out of memory together.
const GROWING: u32 = 10;
const ILLEGAL_ADDRESS: i32 = 700;

fn model() -> PathBuf {
    fixture("llama")
}

/// A short prompt of its own, and an output whose length the scheduler must not count on.
fn growing_request(index: u32) -> GenerateRequest {
    let prompt = (1..20).map(|i| (i * 7 + index * 19) % VOCAB).collect();
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt));
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 20 + 40 * (index % 4);
    sampling.min_new_tokens = sampling.max_new_tokens;
    sampling.sampling_seed = Some(u64::from(index));
    if index.is_multiple_of(2) {
        sampling.temperature = 0.0;
    }
    request
}

/// What the requests give alone.
async fn alone(setup: &Setup) -> Vec<Vec<u32>> {
    let world = setup.start_on_gpu(setup.config(&model()));
    let mut outputs = Vec::new();
    for index in 0..GROWING {
        outputs.push(collect(world.generate(growing_request(index))).await.tokens);
    }
    world.stop().await;
    outputs
}

/// Requests that lose their place in the batch go on as if nothing had been: their output is what they give alone. In
/// bfloat16 a batch may round elsewhere, so there it is its length.
async fn retracted(setup: &Setup) {
    let world = setup.start_on_gpu(EngineConfig {
        // So many that all begin, and not all can grow.
        max_total_tokens: Some(if setup.page_size == 1 { 320 } else { 432 }),
        // Reserves next to nothing for the running ones, so that they run into each other.
        schedule_conservativeness: 0.01,
        ..setup.config(&model())
    });
    let runs = (0..GROWING).map(|index| collect(world.generate(growing_request(index))));
    let outcomes = join_all(runs).await;
    let stats = world.assert_whole().await;
    assert!(stats.retractions > 0, "{setup:?}: {stats:?}");
    world.stop().await;
    for (index, outcome) in (0..).zip(&outcomes) {
        assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
        let n_tokens = growing_request(index).sampling.max_new_tokens;
        assert_eq!(
            outcome.tokens.len(),
            n_tokens as usize,
            "{setup:?}, {index}"
        );
    }
    if setup.dtype == Dtype::Float32 {
        let outputs = outcomes.into_iter().map(|outcome| outcome.tokens);
        assert_eq!(outputs.collect::<Vec<_>>(), alone(setup).await, "{setup:?}");
    }
}

/// Every other request is cancelled when its first token comes; the others never notice.
async fn cancelled(setup: &Setup) {
    let world = setup.start_on_gpu(setup.config(&model()));
    let mut expected = Vec::new();
    for index in (0..REQUESTS).step_by(2) {
        expected.push(collect(world.generate(request(index))).await.tokens);
    }
    let runs = (0..REQUESTS).map(async |index| {
        if index % 2 == 0 {
            return collect(world.generate(request(index))).await;
        }
        let mut leaving = long_request(index);
        // As many as the context has room for: none ends before it is cancelled.
        leaving.sampling.ignore_eos = true;
        leaving.sampling.min_new_tokens = 0;
        leaving.sampling.max_new_tokens = 1000;
        let mut generation = world.generate(leaving);
        let first = within(generation.next()).await;
        assert!(matches!(first, Some(Event::Delta(_))), "{first:?}");
        generation.cancel();
        collect(generation).await
    });
    let outcomes = join_all(runs).await;
    let (kept, gone): (Vec<_>, Vec<_>) = (0..REQUESTS)
        .zip(outcomes)
        .partition(|(index, _)| index % 2 == 0);
    for (_, outcome) in gone {
        assert!(matches!(outcome.end, Event::Cancelled(_)), "{outcome:?}");
    }
    for ((index, outcome), expected) in kept.iter().zip(&expected) {
        assert_eq!(outcome.tokens.len(), expected.len(), "{setup:?}, {index}");
        if setup.dtype == Dtype::Float32 {
            assert_eq!(&outcome.tokens, expected, "{setup:?}, {index}");
        }
    }
    world.assert_whole().await;
    world.stop().await;
}

#[tokio::test]
async fn retraction_changes_no_output() {
    for setup in &SETUPS {
        retracted(setup).await;
    }
}

#[tokio::test]
async fn cancellation_frees_everything_and_disturbs_nobody() {
    for setup in &SETUPS {
        cancelled(setup).await;
    }
}

/// An engine on a device of its own, which is reset whenever an executor is made.
fn start_on(ordinal: usize) -> World {
    let setup = F32_PAGES_OF_1_GRAPHS;
    let config = setup.config(&model());
    let mut parts = EngineParts::from_model(&config, Progress::silent()).unwrap();
    let options = setup.options(&config, &parts);
    parts.executor = Arc::new(move || {
        // What the driver does when the last one releases a context.
        Device::new(ordinal).reset();
        Ok(Box::new(load_on(ordinal, &model(), &options)))
    });
    World {
        engine: Engine::start_with(config, parts).expect("the model loads"),
    }
}

#[tokio::test]
async fn a_device_that_fails_ends_what_is_inside_and_the_engine_comes_back() {
    const ORDINAL: usize = 5;
    if gpu::real().is_some() {
        eprintln!("skipped: a real GPU does not fail on request");
        return;
    }
    let world = start_on(ORDINAL);
    let expected = collect(world.generate(request(3))).await.tokens;
    Device::new(ORDINAL).plan(Fault::Kernel(ILLEGAL_ADDRESS), 100);
    let runs = (0..4).map(|index| collect(world.generate(long_request(index))));
    for outcome in join_all(runs).await {
        match &outcome.end {
            Event::Failed(error) => assert_eq!(error.code(), "engine_down", "{error}"),
            other => panic!("ended with {other:?}"),
        }
    }
    within(async {
        while !world.engine.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let again = collect(world.generate(request(3))).await;
    assert_eq!(again.tokens, expected);
    world.assert_whole().await;
    world.stop().await;
}
