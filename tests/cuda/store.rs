//! Prefixes that outlive memory and engines: a prompt loaded from the store gives the output of a computed one, for any
//! timing of copies and any copy that the driver refuses.

use std::path::Path;

use futures_util::future::join_all;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_cusim::{Device, Fault};
use souffleur_request::{Event, GenerateRequest, Prompt};
use souffleur_state::sampling::LogprobWish;
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::tier::TierStats;
use tempfile::TempDir;

use crate::gpu;
use crate::model::fixture;
use crate::requests::{Bits, VOCAB, bits};
use crate::scores::Reference;
use crate::setups::{
    BF16_PAGES_OF_1, BF16_PAGES_OF_16_GRAPHS, F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, Setup,
};
use crate::world::{World, collect, within};

const F32_PAGES_OF_64_GRAPHS: Setup = Setup {
    dtype: DtypeChoice::Float32,
    page_size: 64,
    graphs: true,
};
const SETUPS: [Setup; 5] = [
    F32_PAGES_OF_1_GRAPHS,
    F32_PAGES_OF_16,
    F32_PAGES_OF_64_GRAPHS,
    BF16_PAGES_OF_16_GRAPHS,
    BF16_PAGES_OF_1,
];
const OUT_OF_MEMORY: i32 = 2;
const ILLEGAL_ADDRESS: i32 = 700;
/// Number of requests, which belong to three conversations.
const CROWD: u32 = 9;

fn stored(setup: &Setup, folder: &Path) -> EngineConfig {
    EngineConfig {
        kv_disk_path: Some(folder.to_owned()),
        kv_disk_bytes: 1 << 28,
        kv_host_bytes: Some(1 << 24),
        ..setup.config(&fixture("llama"))
    }
}

/// An engine on a separate device, whose copies run as early or as late as possible, once the store is ready.
async fn serving(setup: &Setup, config: EngineConfig, (ordinal, hurries): (usize, bool)) -> World {
    if gpu::real().is_none() {
        souffleur_cusim::load();
        Device::new(ordinal).hurry_copies(hurries);
    }
    let (_, open) = crossbeam_channel::bounded(0);
    let world = setup.start_on(ordinal, open, config);
    world.until(|stats| tier(stats).serves).await;
    world
}

fn tier(stats: &EngineStats) -> TierStats {
    stats.store.expect("the engine has a store")
}

/// Waits until all computed blocks, at least `blocks`, are written.
async fn written(world: &World, blocks: u64) {
    let is_written = |stats: &EngineStats| {
        let tier = tier(stats);
        let is_idle = tier.queued_paths == 0 && tier.free_buffers == tier.buffers;
        tier.saved_blocks >= blocks && is_idle
    };
    world.until(is_written).await;
}

/// A prompt of two whole blocks and some more.
fn ask(seed: u32) -> GenerateRequest {
    let prompt = (0..150).map(|i| (i * 17 + seed * 5 + i / 7) % VOCAB);
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt.collect()));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 8;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(seed));
    sampling.temperature = 0.7;
    request
}

/// One of several requests of a conversation, which share one block or two; greedy.
fn of_crowd(index: u32) -> GenerateRequest {
    let (conversation, turn) = (index % 3, index / 3);
    let shared = (0..70 + 40 * turn).map(|i| (i * 13 + conversation * 71 + i / 5) % VOCAB);
    let own = (0..3 + index).map(|i| (i * 29 + index * 37 + 11) % VOCAB);
    let mut request = GenerateRequest::new(Prompt::Tokens(shared.chain(own).collect()));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 12 + index;
    sampling.ignore_eos = true;
    sampling.temperature = 0.0;
    request
}

async fn first_life(setup: &Setup, folder: &Path, device: (usize, bool)) -> Bits {
    let world = serving(setup, stored(setup, folder), device).await;
    let (bits, cached) = bits(world.generate(ask(1))).await;
    assert_eq!(cached, 0);
    written(&world, 2).await;
    world.assert_whole().await;
    world.stop().await;
    bits
}

/// The output of the second life, and the number of tokens from the store.
async fn second_life(setup: &Setup, folder: &Path, device: (usize, bool)) -> (Bits, u64) {
    let world = serving(setup, stored(setup, folder), device).await;
    let (bits, cached) = bits(world.generate(ask(1))).await;
    let stats = world.assert_whole().await;
    let loaded = tier(&stats).loaded_tokens;
    assert_eq!(u64::from(cached), loaded);
    world.stop().await;
    (bits, loaded)
}

#[tokio::test]
async fn a_prompt_has_the_same_output_after_a_restart() {
    const ORDINAL: usize = 20;
    for setup in &SETUPS {
        for hurries in [false, true] {
            let folder = TempDir::new().unwrap();
            let device = (ORDINAL, hurries);
            let expected = first_life(setup, folder.path(), device).await;
            let (got, loaded) = second_life(setup, folder.path(), device).await;
            assert_eq!(loaded, 128, "{setup:?}, early copies: {hurries}");
            assert_eq!(got, expected, "{setup:?}, early copies: {hurries}");
        }
    }
}

/// Many requests in a pool that holds only a part of them: pages are saved, evicted, granted again and loaded at once.
#[tokio::test]
async fn saves_and_loads_during_other_requests_change_no_output() {
    const ORDINAL: usize = 21;
    for (setup, hurries) in [
        (F32_PAGES_OF_1_GRAPHS, false),
        (F32_PAGES_OF_16, true),
        (BF16_PAGES_OF_16_GRAPHS, true),
    ] {
        let reference = Reference::new(&setup, &fixture("llama"), (of_crowd, CROWD)).await;
        let folder = TempDir::new().unwrap();
        for life in 0..2 {
            let config = EngineConfig {
                max_total_tokens: Some(720),
                ..stored(&setup, folder.path())
            };
            let world = serving(&setup, config, (ORDINAL, hurries)).await;
            let crowd = (0..CROWD).map(|index| bits(world.generate(of_crowd(index))));
            let outputs = join_all(crowd).await;
            for (index, (got, _)) in (0..).zip(&outputs) {
                let what = format!("life {life}");
                reference.check(&setup, index, got, &what).await;
            }
            // The second engine finds all blocks in the store.
            written(&world, if life == 0 { 3 } else { 0 }).await;
            let stats = world.assert_whole().await;
            if life > 0 {
                assert!(tier(&stats).loaded_tokens > 0, "{setup:?}: {stats:?}");
            }
            world.stop().await;
        }
        reference.stop().await;
    }
}

/// For any copy that the driver refuses (lists, saves, loads or results), a step is lost or a block is not saved, but
/// no request gets another token.
#[tokio::test]
async fn a_refused_copy_costs_time_and_changes_no_token() {
    const ORDINAL: usize = 22;
    if gpu::real().is_some() {
        eprintln!("skipped: faults need the emulated GPU");
        return;
    }
    let setup = F32_PAGES_OF_16;
    let reference = Reference::new(&setup, &fixture("llama"), (of_crowd, CROWD)).await;
    let folder = TempDir::new().unwrap();
    let device = Device::new(ORDINAL);
    let world = serving(&setup, stored(&setup, folder.path()), (ORDINAL, false)).await;
    for index in 0..CROWD {
        let (got, _) = bits(world.generate(of_crowd(index))).await;
        reference.check(&setup, index, &got, "computed").await;
    }
    written(&world, 3).await;
    world.stop().await;
    for nth in [1, 2, 3, 4, 6] {
        let world = serving(&setup, stored(&setup, folder.path()), (ORDINAL, false)).await;
        device.plan(Fault::Copy(OUT_OF_MEMORY), nth);
        let crowd = (0..CROWD).map(|index| bits(world.generate(of_crowd(index))));
        for (index, (got, _)) in (0..).zip(join_all(crowd).await) {
            let what = format!("without copy {nth}");
            reference.check(&setup, index, &got, &what).await;
        }
        device.plan(Fault::Copy(OUT_OF_MEMORY), 0);
        world.assert_whole().await;
        world.stop().await;
    }
    reference.stop().await;
}

#[tokio::test]
async fn a_device_that_fails_leaves_the_store_to_the_next_executor() {
    const ORDINAL: usize = 23;
    if gpu::real().is_some() {
        eprintln!("skipped: faults need the emulated GPU");
        return;
    }
    let setup = F32_PAGES_OF_1_GRAPHS;
    let folder = TempDir::new().unwrap();
    let device = (ORDINAL, false);
    let expected = first_life(&setup, folder.path(), device).await;
    let world = serving(&setup, stored(&setup, folder.path()), device).await;
    Device::new(ORDINAL).plan(Fault::Kernel(ILLEGAL_ADDRESS), 20);
    let outcome = collect(world.generate(ask(2))).await;
    match &outcome.end {
        Event::Failed(error) => assert_eq!(error.code(), "engine_down", "{error}"),
        other => panic!("ended with {other:?}"),
    }
    within(async {
        while !world.engine.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.until(|stats| tier(stats).serves).await;
    let (got, cached) = bits(world.generate(ask(1))).await;
    assert_eq!((cached, got), (128, expected));
    world.assert_whole().await;
    world.stop().await;
}
