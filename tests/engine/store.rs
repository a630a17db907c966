//! Tests that prefixes outlive a restart: a prompt loaded from the KV store gives the same tokens and log probabilities
//! as a computed prompt, bit for bit. Real models run on the CPU executor, with a real store in a temporary folder.

use std::path::Path;

use souffleur_config::{DtypeChoice, EngineConfig, KvCacheDtype};
use souffleur_request::{GenerateRequest, Prompt};
use souffleur_state::sampling::LogprobWish;
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::tier::TierStats;
use tempfile::TempDir;

use crate::identity::{plain, start};
use crate::requests::{Bits, VOCAB, bits};
use crate::world::World;

/// A dense model, two with latent attention, two with sliding windows, one with attention sinks, one whose layers share
/// K/V, and three with recurrent states.
const MODELS: [&str; 10] = [
    "tests/fixtures/models/qwen3",
    "tests/fixtures/models/deepseek-v2",
    "tests/fixtures/models/glm4-moe-lite",
    "tests/fixtures/models/gemma2",
    "tests/fixtures/models/mistral",
    "tests/fixtures/models/gpt-oss",
    "tests/fixtures/models/gemma4",
    "tests/fixtures/models/lfm2",
    "tests/fixtures/models/qwen3-5",
    "tests/fixtures/models/qwen3-next",
];

pub fn stored(model: &str, folder: &Path, page_size: u32) -> EngineConfig {
    EngineConfig {
        kv_disk_path: Some(folder.to_owned()),
        kv_disk_bytes: 1 << 28,
        kv_host_bytes: Some(1 << 24),
        page_size,
        ..plain(model, DtypeChoice::Auto)
    }
}

/// A request whose prompt has two whole blocks and some more tokens.
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

fn tier(stats: &EngineStats) -> TierStats {
    stats.store.expect("the engine has a store")
}

/// Starts an engine, and waits until its store is ready.
async fn serving(config: EngineConfig) -> World {
    let world = start(config);
    world.until(|stats| tier(stats).serves).await;
    world
}

/// Runs a prompt on a new engine, waits until the store has written the prompt, and stops the engine.
pub async fn run_and_store(config: EngineConfig, seed: u32) -> Bits {
    let world = serving(config).await;
    let (bits, cached) = bits(world.generate(ask(seed))).await;
    assert_eq!(cached, 0);
    let is_written = |stats: &EngineStats| {
        let tier = tier(stats);
        let is_idle =
            tier.free_buffers == tier.buffers && tier.free_state_buffers == tier.state_buffers;
        tier.saved_blocks >= 2 && tier.queued_paths == 0 && is_idle
    };
    world.until(is_written).await;
    world.assert_no_leaks().await;
    world.stop().await;
    bits
}

/// Runs the prompt on another new engine. Returns its output and the number of tokens loaded from the store.
pub async fn run_after_restart(config: EngineConfig, seed: u32) -> (Bits, u64) {
    let world = serving(config).await;
    let (bits, cached) = bits(world.generate(ask(seed))).await;
    let stats = world.assert_no_leaks().await;
    let loaded = tier(&stats).loaded_tokens;
    assert_eq!(u64::from(cached), loaded);
    world.stop().await;
    (bits, loaded)
}

#[tokio::test]
async fn a_prompt_gives_the_same_output_after_a_restart() {
    for model in MODELS {
        for page_size in [1, 16, 64] {
            let folder = TempDir::new().expect("a temporary folder");
            let config = stored(model, folder.path(), page_size);
            let expected = run_and_store(config.clone(), 1).await;
            let (got, loaded) = run_after_restart(config, 1).await;
            assert_eq!(loaded, 128, "{model}, pages of {page_size}");
            assert_eq!(got, expected, "{model}, pages of {page_size}");
        }
    }
}

#[tokio::test]
async fn codes_and_scales_of_int8_are_stored_together() {
    let folder = TempDir::new().expect("a temporary folder");
    let config = EngineConfig {
        kv_cache_dtype: KvCacheDtype::Int8,
        ..stored(MODELS[0], folder.path(), 16)
    };
    let expected = run_and_store(config.clone(), 2).await;
    let (got, loaded) = run_after_restart(config, 2).await;
    assert_eq!((loaded, got), (128, expected));
}

#[tokio::test]
async fn chunked_prefills_with_another_page_size_load_the_stored_prefix() {
    let folder = TempDir::new().expect("a temporary folder");
    let expected = run_and_store(stored(MODELS[0], folder.path(), 1), 3).await;
    let config = EngineConfig {
        chunked_prefill_size: 16,
        enable_mixed_chunk: true,
        ..stored(MODELS[0], folder.path(), 16)
    };
    let (got, loaded) = run_after_restart(config, 3).await;
    assert_eq!((loaded, got), (128, expected));
}

#[tokio::test]
async fn a_prefix_loaded_in_rounds_gives_the_same_output() {
    for page_size in [1, 16, 64] {
        let folder = TempDir::new().expect("a temporary folder");
        let config = stored(MODELS[0], folder.path(), page_size);
        let expected = run_and_store(config.clone(), 6).await;
        // Host memory for two block buffers of 32 KiB, one of which is reserved for saves.
        let config = EngineConfig {
            kv_host_bytes: Some(1 << 16),
            ..config
        };
        let (got, loaded) = run_after_restart(config, 6).await;
        assert_eq!(loaded, 128, "pages of {page_size}");
        assert_eq!(got, expected, "pages of {page_size}");
    }
}

#[tokio::test]
async fn another_model_and_another_kv_type_find_nothing() {
    let folder = TempDir::new().expect("a temporary folder");
    run_and_store(stored(MODELS[0], folder.path(), 1), 4).await;
    let others = [
        stored("tests/fixtures/models/qwen2", folder.path(), 1),
        EngineConfig {
            kv_cache_dtype: KvCacheDtype::Int8,
            ..stored(MODELS[0], folder.path(), 1)
        },
    ];
    for config in others {
        let (_, loaded) = run_after_restart(config, 4).await;
        assert_eq!(loaded, 0);
    }
}

#[tokio::test]
async fn with_an_unusable_folder_the_engine_runs_without_a_store() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("a file, no folder");
    std::fs::write(&file, "x").expect("a writable folder");
    let world = start(stored(MODELS[0], &file, 1));
    let (output, cached) = bits(world.generate(ask(5))).await;
    assert_eq!((output.len(), cached), (8, 0));
    let stats = world.assert_no_leaks().await;
    assert!(!tier(&stats).serves);
    world.stop().await;
}
