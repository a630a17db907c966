//! Tests of deaths in engines with a KV store: the store is started again alone, and outlives the unit that it serves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use actix_rt::Arbiter;
use souffleur::actors::kv_store::StoreSetup;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineParts, Progress};
use souffleur::request::{Event, GenerateRequest};
use souffleur::state::scheduler::stats::EngineStats;
use souffleur::state::scheduler::tier::TierStats;
use souffleur::store::Identify;
use tempfile::TempDir;

use super::doubles::{Fault, PanickingSubscriber, with_fault};
use super::watchdog::{deaths_of, recorder};
use super::world::{World, collect, request, within};

/// The tokens of the prompt's two whole blocks.
const STORED_TOKENS: u64 = 128;
/// More steps than one short request takes.
const FAULT_STEP: u64 = 60;

fn ask(max_new_tokens: u32, seed: u64) -> GenerateRequest {
    let prompt: Vec<u32> = (0..150).map(|i| 2 + (i * 17 + i / 7) % 250).collect();
    let mut request = request(&prompt, max_new_tokens, seed);
    request.sampling.ignore_eos = true;
    request
}

fn config(folder: &TempDir) -> EngineConfig {
    EngineConfig {
        model_path: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3"),
        skip_tokenizer_init: true,
        max_total_tokens: Some(1024),
        threads: 1,
        // The speed of such short prefills is not measured, so every stored prefix is worth loading.
        chunked_prefill_size: 48,
        kv_disk_path: Some(folder.path().to_owned()),
        kv_disk_bytes: 1 << 28,
        kv_host_bytes: Some(1 << 24),
        // No fetch is late, however slow the machine is.
        kv_prefetch_timeout_base_s: 60.0,
        rebuild_backoff_s: 0.0,
        ..EngineConfig::default()
    }
}

/// The parts of an engine whose KV stores, numbered from 0, get their identities from `identify`, or else from the
/// model; and the number of stores that were started.
fn parts(
    config: &EngineConfig,
    identify: impl Fn(usize) -> Option<Identify> + Send + Sync + 'static,
) -> (EngineParts, Arc<AtomicUsize>) {
    let mut parts = EngineParts::from_model(config, Progress::silent()).expect("supported");
    let store = parts.store.take().expect("there is a store");
    let (starts, usual) = (Arc::new(AtomicUsize::new(0)), store.clone());
    let counted = starts.clone();
    parts.store = Some(Arc::new(StoreSetup {
        config: store.config.clone(),
        geometry: store.geometry.clone(),
        identify: Box::new(move || {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            identify(number).unwrap_or_else(|| (usual.identify)())
        }),
        desk: store.desk.clone(),
    }));
    (parts, starts)
}

/// Starts an engine whose control actors run on the returned Arbiter.
async fn start(
    config: EngineConfig,
    parts: EngineParts,
    subscriber: Option<PanickingSubscriber>,
) -> (World, Arbiter) {
    let arbiter = Arbiter::new();
    if let Some(subscriber) = subscriber {
        arbiter.spawn_fn(move || {
            // The subscriber stays set until the thread ends.
            std::mem::forget(tracing::subscriber::set_default(subscriber));
        });
    }
    let engine = Engine::start_in_with(&arbiter.handle(), config, parts).await;
    let engine = engine.expect("the engine starts");
    (World { engine }, arbiter)
}

fn tier(stats: &EngineStats) -> TierStats {
    stats.store.expect("the engine has a store")
}

/// Runs the prompt, and waits until its blocks are written.
async fn store_prompt(world: &World) {
    world.until(|stats| tier(stats).serves).await;
    let outcome = collect(world.generate(ask(8, 1))).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    let is_written = |stats: &EngineStats| {
        let tier = tier(stats);
        tier.saved_blocks >= 2 && tier.queued_paths == 0 && tier.free_buffers == tier.buffers
    };
    world.until(is_written).await;
}

async fn until_deaths(actor: &str, deaths: u64) {
    within(async {
        while deaths_of(actor) < deaths {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Starts an engine whose first store dies, and checks that the second one has the blocks on the disk.
async fn serves_again(
    folder: &TempDir,
    died: &str,
    identify: impl Fn(usize) -> Option<Identify> + Send + Sync + 'static,
    subscriber: Option<PanickingSubscriber>,
) {
    let config = config(folder);
    let (parts, starts) = parts(&config, identify);
    let before = deaths_of(died);
    let (world, arbiter) = start(config, parts, subscriber).await;
    until_deaths(died, before + 1).await;
    world.until(|stats| tier(stats).serves).await;
    let outcome = collect(world.generate(ask(8, 1))).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    let stats = world.assert_no_leaks().await;
    assert_eq!(tier(&stats).loaded_tokens, STORED_TOKENS);
    assert_eq!(starts.load(Ordering::SeqCst), 2);
    world.stop().await;
    arbiter.stop();
    assert_eq!(deaths_of(died), before + 1, "a shutdown is not a death");
}

fn bug_of_the_thread() -> Identify {
    Box::new(|_| panic!("a bug of the thread"))
}

/// An engine whose stores all die continues without one.
async fn stays_off(folder: &TempDir) {
    let config = config(folder);
    let (parts, starts) = parts(&config, |_| Some(bug_of_the_thread()));
    let before = deaths_of("kv_store_thread");
    let (world, arbiter) = start(config, parts, None).await;
    until_deaths("kv_store_thread", before + 6).await;
    let outcome = collect(world.generate(ask(8, 1))).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    let stats = world.assert_no_leaks().await;
    assert!(!tier(&stats).serves);
    world.stop().await;
    arbiter.stop();
    assert_eq!(starts.load(Ordering::SeqCst), 6, "five restarts");
    assert_eq!(deaths_of("kv_store_thread"), before + 6);
}

/// A store that an error disables, or that is stopped, has not died.
async fn ends_without_a_death(folder: &TempDir) {
    let config = config(folder);
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = is_asked.clone();
    let gone = move || -> Identify {
        let asked = asked.clone();
        Box::new(move |_| {
            asked.store(true, Ordering::SeqCst);
            Err("the weights are gone".to_owned())
        })
    };
    let (parts, starts) = parts(&config, move |_| Some(gone()));
    let before = deaths_of("kv_store_thread");
    let (world, arbiter) = start(config, parts, None).await;
    world.until(|_| is_asked.load(Ordering::SeqCst)).await;
    // The store's actor learns of the error next, which no statistics show: this request takes longer.
    let outcome = collect(world.generate(ask(8, 1))).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    let stats = world.assert_no_leaks().await;
    assert!(!tier(&stats).serves);
    world.stop().await;
    arbiter.stop();
    assert_eq!(deaths_of("kv_store_thread"), before);
    assert_eq!(starts.load(Ordering::SeqCst), 1);
}

#[actix::test]
async fn the_kv_store_is_started_again_after_its_death_and_has_its_blocks() {
    recorder();
    let folder = TempDir::new().expect("a temporary folder");
    let config = config(&folder);
    let (parts, _) = parts(&config, |_| None);
    let (world, arbiter) = start(config, parts, None).await;
    store_prompt(&world).await;
    world.stop().await;
    arbiter.stop();

    let dies_first = |number: usize| -> Option<Identify> {
        assert!(number > 0, "a bug of the actor");
        None
    };
    serves_again(&folder, "kv_store", dies_first, None).await;
    let thread_dies_first = |number: usize| (number == 0).then(bug_of_the_thread);
    serves_again(&folder, "kv_store_thread", thread_dies_first, None).await;
    // At its third event the store is ready, and has locked its folder.
    let subscriber = PanickingSubscriber::new("souffleur_actors::kv_store", 3);
    serves_again(&folder, "kv_store", |_| None, Some(subscriber)).await;
    ends_without_a_death(&folder).await;
    stays_off(&folder).await;
}

#[actix::test]
async fn requests_that_continue_after_a_death_load_their_prefix_from_the_store_that_lives_on() {
    recorder();
    let folder = TempDir::new().expect("a temporary folder");
    let config = config(&folder);
    let (parts, starts) = parts(&config, |_| None);
    // The Scheduler logs a refused step.
    let parts = with_fault(parts, FAULT_STEP, Fault::Reject);
    let subscriber = PanickingSubscriber::new("souffleur_actors::scheduler", 1);
    let (world, arbiter) = start(config, parts, Some(subscriber)).await;
    store_prompt(&world).await;
    let before = deaths_of("scheduler");
    let disturbed = collect(world.generate(ask(100, 2))).await;
    assert!(matches!(disturbed.end, Event::Finished(_)), "{disturbed:?}");
    assert!(deaths_of("scheduler") > before);
    // The next unit began with an empty cache, and the next Scheduler counts from 0.
    let stats = world.assert_no_leaks().await;
    let tier = tier(&stats);
    assert!(tier.serves && tier.fetches > 0, "{tier:?}");
    assert_eq!((tier.late_fetches, tier.refused_fetches), (0, 0));
    let undisturbed = collect(world.generate(ask(100, 2))).await;
    assert_eq!(disturbed.tokens, undisturbed.tokens);
    assert_eq!(disturbed.tokens.len(), 100);
    assert_eq!(starts.load(Ordering::SeqCst), 1, "the store lives on");
    world.stop().await;
    arbiter.stop();
}
