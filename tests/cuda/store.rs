//! Tests of the KV store on a GPU: prompts whose K/V are loaded from the store have the same outputs as computed ones,
//! whenever copies run, and whichever copy the driver refuses.

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
use crate::world::{World, collect};

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
/// Total number of turns in three conversations.
const TURNS: u32 = 9;

fn with_store(setup: &Setup, folder: &Path) -> EngineConfig {
    EngineConfig {
        kv_disk_path: Some(folder.to_owned()),
        kv_disk_bytes: 1 << 28,
        kv_host_bytes: Some(1 << 24),
        ..setup.config(&fixture("llama"))
    }
}

/// Starts an engine on a separate device, whose copies run as early or as late as possible, and waits for its store.
async fn start_up(setup: &Setup, config: EngineConfig, (ordinal, early): (usize, bool)) -> World {
    if gpu::real().is_none() {
        souffleur_cusim::load();
        Device::new(ordinal).hurry_copies(early);
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
async fn wait_written(world: &World, blocks: u64) {
    let is_written = |stats: &EngineStats| {
        let tier = tier(stats);
        let is_idle = tier.queued_paths == 0 && tier.free_buffers == tier.buffers;
        tier.saved_blocks >= blocks && is_idle
    };
    world.until(is_written).await;
}

/// A request whose prompt has two whole blocks and a part of a third.
fn two_blocks(seed: u32) -> GenerateRequest {
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

/// A greedy request: a turn of a conversation, whose turns share one or two blocks.
fn chat_turn(index: u32) -> GenerateRequest {
    let (conversation, turn) = (index % 3, index / 3);
    let shared = (0..70 + 40 * turn).map(|i| (i * 13 + conversation * 71 + i / 5) % VOCAB);
    let unique = (0..3 + index).map(|i| (i * 29 + index * 37 + 11) % VOCAB);
    let mut request = GenerateRequest::new(Prompt::Tokens(shared.chain(unique).collect()));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 12 + index;
    sampling.ignore_eos = true;
    sampling.temperature = 0.0;
    request
}

async fn before_restart(setup: &Setup, folder: &Path, device: (usize, bool)) -> Bits {
    let world = start_up(setup, with_store(setup, folder), device).await;
    let (bits, cached) = bits(world.generate(two_blocks(1))).await;
    assert_eq!(cached, 0);
    wait_written(&world, 2).await;
    world.assert_no_leaks().await;
    world.stop().await;
    bits
}

/// The output after a restart, and the number of tokens loaded from the store.
async fn after_restart(setup: &Setup, folder: &Path, device: (usize, bool)) -> (Bits, u64) {
    let world = start_up(setup, with_store(setup, folder), device).await;
    let (bits, cached) = bits(world.generate(two_blocks(1))).await;
    let stats = world.assert_no_leaks().await;
    let loaded = tier(&stats).loaded_tokens;
    assert_eq!(u64::from(cached), loaded);
    world.stop().await;
    (bits, loaded)
}

#[tokio::test]
async fn a_prompt_has_the_same_output_after_a_restart() {
    const ORDINAL: usize = 20;
    for setup in &SETUPS {
        for early in [false, true] {
            let folder = TempDir::new().unwrap();
            let device = (ORDINAL, early);
            let expected = before_restart(setup, folder.path(), device).await;
            let (got, loaded) = after_restart(setup, folder.path(), device).await;
            assert_eq!(loaded, 128, "{setup:?}, early copies: {early}");
            assert_eq!(got, expected, "{setup:?}, early copies: {early}");
        }
    }
}

/// Many requests in a pool that holds only a part of them: pages are saved, evicted, granted again and loaded at once.
#[tokio::test]
async fn saves_and_loads_during_other_requests_change_no_output() {
    const ORDINAL: usize = 21;
    for (setup, early) in [
        (F32_PAGES_OF_1_GRAPHS, false),
        (F32_PAGES_OF_16, true),
        (BF16_PAGES_OF_16_GRAPHS, true),
    ] {
        let reference = Reference::new(&setup, &fixture("llama"), (chat_turn, TURNS)).await;
        let folder = TempDir::new().unwrap();
        for engine in 0..2 {
            let config = EngineConfig {
                max_total_tokens: Some(720),
                ..with_store(&setup, folder.path())
            };
            let world = start_up(&setup, config, (ORDINAL, early)).await;
            let turns = (0..TURNS).map(|index| bits(world.generate(chat_turn(index))));
            let outputs = join_all(turns).await;
            for (index, (got, _)) in (0..).zip(&outputs) {
                let what = format!("engine {engine}");
                reference.check(&setup, index, got, &what).await;
            }
            // The second engine finds all blocks in the store.
            wait_written(&world, if engine == 0 { 3 } else { 0 }).await;
            let stats = world.assert_no_leaks().await;
            if engine > 0 {
                assert!(tier(&stats).loaded_tokens > 0, "{setup:?}: {stats:?}");
            }
            world.stop().await;
        }
        reference.stop().await;
    }
}

/// Whichever copy the driver refuses (of a step's input, a saved or loaded block, or results), a step is lost or a
/// block is not saved, but no request gets another token.
#[tokio::test]
async fn a_refused_copy_costs_time_and_changes_no_token() {
    const ORDINAL: usize = 22;
    if gpu::real().is_some() {
        eprintln!("skipped: faults need the emulated GPU");
        return;
    }
    let setup = F32_PAGES_OF_16;
    let reference = Reference::new(&setup, &fixture("llama"), (chat_turn, TURNS)).await;
    let folder = TempDir::new().unwrap();
    let device = Device::new(ORDINAL);
    let world = start_up(&setup, with_store(&setup, folder.path()), (ORDINAL, false)).await;
    for index in 0..TURNS {
        let (got, _) = bits(world.generate(chat_turn(index))).await;
        reference.check(&setup, index, &got, "computed").await;
    }
    wait_written(&world, 3).await;
    world.stop().await;
    for nth in [1, 2, 3, 4, 6] {
        let world = start_up(&setup, with_store(&setup, folder.path()), (ORDINAL, false)).await;
        device.plan(Fault::Copy(OUT_OF_MEMORY), nth);
        let turns = (0..TURNS).map(|index| bits(world.generate(chat_turn(index))));
        for (index, (got, _)) in (0..).zip(join_all(turns).await) {
            let what = format!("without copy {nth}");
            reference.check(&setup, index, &got, &what).await;
        }
        device.plan(Fault::Copy(OUT_OF_MEMORY), 0);
        world.assert_no_leaks().await;
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
    let expected = before_restart(&setup, folder.path(), device).await;
    let world = start_up(&setup, with_store(&setup, folder.path()), device).await;
    Device::new(ORDINAL).plan(Fault::Kernel(ILLEGAL_ADDRESS), 20);
    let outcome = collect(world.generate(two_blocks(2))).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    assert_eq!(world.engine.unit_status().generation, 2);
    world.until(|stats| tier(stats).serves).await;
    let (got, cached) = bits(world.generate(two_blocks(1))).await;
    assert_eq!((cached, got), (128, expected));
    world.assert_no_leaks().await;
    world.stop().await;
}
