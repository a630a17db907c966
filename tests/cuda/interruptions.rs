//! Tests of requests that are cancelled, retracted, or in flight when the device fails.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use souffleur_config::EngineConfig;
use souffleur_cusim::{Device, Fault};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_request::{Event, GenerateRequest, Prompt};
use souffleur_state::sampling::LogprobWish;

use crate::gpu;
use crate::model::fixture;
use crate::requests::{REQUESTS, VOCAB, bits, first_of, long_request, request};
use crate::scores::Reference;
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
/// Number of requests that together run out of memory.
const GROWING: u32 = 10;
/// Two of the longest requests, which do not fit into the pool together.
const LONGEST: [u32; 2] = [3, 7];
/// A pool size in tokens that suffices for either of the longest requests, but not for both at once.
const TIGHT_POOL_TOKENS: usize = 304;
const ILLEGAL_ADDRESS: i32 = 700;

fn model() -> PathBuf {
    fixture("llama")
}

/// A short unique prompt, and an output of which the scheduler reserves only a part.
fn growing_request(index: u32) -> GenerateRequest {
    let prompt = (1..20).map(|i| (i * 7 + index * 19) % VOCAB).collect();
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 20 + 40 * (index % 4);
    sampling.min_new_tokens = sampling.max_new_tokens;
    sampling.sampling_seed = Some(u64::from(index));
    if index.is_multiple_of(2) {
        sampling.temperature = 0.0;
    }
    request
}

/// Checks that retracted requests continue with the same outputs.
async fn check_retraction(setup: &Setup) {
    let (open, gate) = crossbeam_channel::bounded(0);
    let config = EngineConfig {
        max_total_tokens: Some(TIGHT_POOL_TOKENS),
        // A bound on step time would admit the prompts one after the other.
        max_prefill_step_ms: 0,
        // Almost nothing is reserved for running requests, so that they compete for pages.
        schedule_conservativeness: 0.01,
        ..setup.config(&model())
    };
    let world = setup.start_gated_on_gpu(gate, config);
    let order = first_of(LONGEST, GROWING);
    let sent = world
        .send_first_alone(order.iter().map(|index| growing_request(*index)))
        .await;
    drop(open);
    let outputs = join_all(sent.into_iter().map(bits)).await;
    let stats = world.assert_no_leaks().await;
    assert!(stats.retractions > 0, "{setup:?}: {stats:?}");
    world.stop().await;
    let reference = Reference::new(setup, &model(), (growing_request, GROWING)).await;
    for (index, (got, _)) in order.into_iter().zip(&outputs) {
        reference.check(setup, index, got, "retracted").await;
    }
    reference.stop().await;
}

/// Cancels every other request at its first token, and checks the outputs of the others.
async fn check_cancellation(setup: &Setup) {
    let world = setup.start_on_gpu(setup.config(&model()));
    let kept = (0..REQUESTS)
        .step_by(2)
        .map(|index| bits(world.generate(request(index))));
    let cancelled = (1..REQUESTS).step_by(2).map(async |index| {
        let mut endless = long_request(index);
        // Outputs are as long as the context allows, so that no request ends before it is cancelled.
        endless.sampling.ignore_eos = true;
        endless.sampling.min_new_tokens = 0;
        endless.sampling.max_new_tokens = 1000;
        let mut generation = world.generate(endless);
        let first = within(generation.next()).await;
        assert!(matches!(first, Some(Event::Delta(_))), "{first:?}");
        generation.cancel();
        collect(generation).await
    });
    let (kept, cancelled) = join(join_all(kept), join_all(cancelled)).await;
    for outcome in cancelled {
        assert!(matches!(outcome.end, Event::Cancelled(_)), "{outcome:?}");
    }
    world.assert_no_leaks().await;
    world.stop().await;
    let reference = Reference::new(setup, &model(), (request, REQUESTS)).await;
    for (index, (got, _)) in (0..REQUESTS).step_by(2).zip(&kept) {
        reference.check(setup, index, got, "kept").await;
    }
    reference.stop().await;
}

#[tokio::test]
async fn retraction_changes_no_output() {
    for setup in &SETUPS {
        check_retraction(setup).await;
    }
}

#[tokio::test]
async fn cancellation_frees_everything_and_changes_no_other_output() {
    for setup in &SETUPS {
        check_cancellation(setup).await;
    }
}

fn start_on(ordinal: usize) -> World {
    let setup = F32_PAGES_OF_1_GRAPHS;
    let config = setup.config(&model());
    let mut parts = EngineParts::from_model(&config, Progress::silent()).unwrap();
    let options = setup.options(&config, &parts);
    parts.executor = Arc::new(move || Ok(Box::new(load_on(ordinal, &model(), &options))));
    World {
        engine: Engine::start_with(config, parts).expect("the model loads"),
    }
}

#[tokio::test]
async fn a_device_fault_fails_no_request_and_the_weights_are_loaded_again() {
    const ORDINAL: usize = 5;
    if gpu::real().is_some() {
        eprintln!("skipped: faults need the emulated GPU");
        return;
    }
    let world = start_on(ORDINAL);
    let expected = collect(world.generate(request(3))).await.tokens;
    let runs = |world: &World| {
        let runs = (0..4).map(|index| collect(world.generate(long_request(index))));
        join_all(runs.collect::<Vec<_>>())
    };
    let undisturbed = runs(&world).await;
    Device::new(ORDINAL).plan(Fault::Kernel(ILLEGAL_ADDRESS), 100);
    for (outcome, expected) in runs(&world).await.iter().zip(&undisturbed) {
        assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
        assert_eq!(outcome.tokens, expected.tokens);
    }
    let status = world.engine.unit_status();
    let died = status.died.map(|died| died.actor);
    assert_eq!((status.generation, died), (2, Some("executor_thread")));
    let again = collect(world.generate(request(3))).await;
    assert_eq!(again.tokens, expected);
    world.assert_no_leaks().await;
    world.stop().await;
}
