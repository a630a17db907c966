//! Tests that a rebuild keeps the model and the host's settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use souffleur::actors::messages::SetPolicy;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineParts, Progress};
use souffleur::request::Event;
use tempfile::TempDir;

use super::doubles::{Fault, faulty_parts, with_fault};
use super::world::{Build, World, assert_finished, collect, request, within};

async fn until_ready(world: &World) {
    within(async {
        while !world.engine.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Sends a request, whose second step kills the executor.
async fn die(world: &World) -> Event {
    collect(world.generate(request(&[1, 2], 50, 7))).await.end
}

#[tokio::test]
async fn a_pause_and_policies_survive_a_rebuild() {
    let (hold, gate) = crossbeam_channel::unbounded();
    let build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    let parts = faulty_parts(&build, 2, Fault::DeviceLost);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let policies = SetPolicy {
        schedule_policy: Some("lof".to_owned()),
        radix_eviction_policy: None,
    };
    world.engine.set_policy(policies).await.expect("lof exists");
    let policies = SetPolicy {
        schedule_policy: None,
        radix_eviction_policy: Some("lfu".to_owned()),
    };
    world.engine.set_policy(policies).await.expect("lfu exists");
    let running = world.generate(request(&[1, 2], 50, 7));
    // The executor dies at its second step, which is queued while the first step waits at the gate.
    world.until(|stats| stats.steps >= 2).await;
    world.engine.set_paused(true).await.expect("it runs");
    drop(hold);
    within(async {
        while world.engine.unit_status().generation < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    until_ready(&world).await;
    let stats = world.engine.stats().await.expect("it runs");
    let set = (stats.schedule_policy, stats.radix_eviction_policy);
    assert_eq!((set, stats.is_paused), (("lof", "lfu"), true));
    let waiting = world.generate(request(&[3, 4], 50, 7));
    world.until(|stats| stats.waiting_requests == 2).await;
    world.engine.set_paused(false).await.expect("it runs");
    assert_finished(&collect(running).await, &[1, 2], 50, 7);
    assert_finished(&collect(waiting).await, &[3, 4], 50, 7);
    world.assert_no_leaks().await;
    world.stop().await;
}

/// Copies a model into the folder, and returns the path of the weights, which tests replace.
fn copy_model(folder: &Path) -> PathBuf {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3");
    for entry in fs::read_dir(fixture).expect("a fixture") {
        let entry = entry.expect("a fixture");
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("a writable folder");
    }
    folder.join("model.safetensors")
}

fn config(folder: &TempDir) -> EngineConfig {
    EngineConfig {
        model_path: folder.path().to_owned(),
        max_total_tokens: Some(1024),
        threads: 1,
        rebuild_attempts: 3,
        rebuild_backoff_s: 0.0,
        ..EngineConfig::default()
    }
}

/// An engine whose executor loses its device at its second step, and the number of times that its model was loaded.
fn dying_engine(config: EngineConfig) -> (World, Arc<AtomicUsize>) {
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("supported");
    let (make, loads) = (parts.executor.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = loads.clone();
    parts.executor = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        make()
    });
    let parts = with_fault(parts, 2, Fault::DeviceLost);
    let engine = Engine::start_with(config, parts).expect("the engine starts");
    (World { engine }, loads)
}

#[tokio::test]
async fn an_engine_is_rebuilt_with_the_same_model_or_not_at_all() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = copy_model(folder.path());
    let weights = fs::read(&file).expect("the file exists");
    let (world, loads) = dying_engine(config(&folder));
    let end = die(&world).await;
    assert!(matches!(end, Event::Finished(_)), "{end:?}");
    until_ready(&world).await;
    assert_eq!(loads.load(Ordering::SeqCst), 2, "the model is loaded again");
    world.stop().await;

    // Changes one bit of one weight in the file.
    let (world, loads) = dying_engine(config(&folder));
    let mut changed = weights.clone();
    let last = changed.len() - 2;
    changed[last] ^= 1;
    fs::write(&file, &changed).expect("the file can be written");
    let end = die(&world).await;
    assert!(matches!(end, Event::Failed(_)), "{end:?}");
    let reason = within(world.engine.failed()).await;
    assert!(
        reason.contains("the engine died and will not be rebuilt: "),
        "{reason}"
    );
    assert!(
        reason.contains("model.safetensors is not the file"),
        "{reason}"
    );
    assert_eq!(loads.load(Ordering::SeqCst), 2, "no further attempt");
    assert!(!world.engine.is_alive() && world.engine.is_over());
    world.stop().await;
}

#[tokio::test]
async fn a_missing_model_fails_after_all_attempts() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = copy_model(folder.path());
    let (world, loads) = dying_engine(config(&folder));
    let aside = folder.path().join("aside");
    fs::rename(&file, &aside).expect("same folder");
    let end = die(&world).await;
    assert!(matches!(end, Event::Failed(_)), "{end:?}");
    let reason = within(world.engine.failed()).await;
    assert!(
        reason.contains("3 attempts to rebuild it failed"),
        "{reason}"
    );
    assert!(reason.contains("holds no weights"), "{reason}");
    assert_eq!(loads.load(Ordering::SeqCst), 4);
    world.stop().await;
}
