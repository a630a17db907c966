//! Tests of panics and deaths: a step that panics is computed again, and after the death of an actor or a thread the
//! engine restarts and every request in flight goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_rt::Arbiter;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use souffleur::engine::{Engine, EngineParts, Generation};
use souffleur::error::LoadError;
use souffleur::executor::fake::expected_output;
use souffleur::request::Event;

use super::doubles::{Fault, PanickingSubscriber, faulty_parts};
use super::world::{Build, VOCAB, World, assert_finished, collect, request, within};

/// At this step, all requests of a test have been admitted.
const FAULT_STEP: u64 = 30;

pub(super) fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        PrometheusBuilder::new()
            .install_recorder()
            .expect("no recorder is installed")
    })
}

pub(super) fn deaths_of(actor: &str) -> u64 {
    let name = format!("souffleur_actor_deaths_total{{actor=\"{actor}\"}} ");
    let page = recorder().render();
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse().expect("a counter is a number"))
}

/// The parts of an engine whose executor has a fault at [`FAULT_STEP`], and the number of executors made.
fn counted_parts(build: &Build, fault: Fault) -> (EngineParts, Arc<AtomicUsize>) {
    let mut parts = faulty_parts(build, FAULT_STEP, fault);
    let (make, builds) = (parts.executor.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = builds.clone();
    parts.executor = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        make()
    });
    (parts, builds)
}

/// Has the executor fail while eight requests run, and checks that all finish with their outputs. Returns the number of
/// executors made, and the engine.
async fn survives(fault: Fault) -> (usize, World) {
    let (hold, gate) = crossbeam_channel::unbounded();
    let build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    let (parts, builds) = counted_parts(&build, fault);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    finishes_all(&world, hold).await;
    (builds.load(Ordering::SeqCst), world)
}

/// Drops `hold` while eight requests run, and checks that all finish with their outputs.
async fn finishes_all(world: &World, hold: crossbeam_channel::Sender<()>) {
    let prompts: Vec<Vec<u32>> = (0..8)
        .map(|i| (1..40).map(|t| t * 5 + i).collect())
        .collect();
    // All outputs are longer than the steps before the fault.
    let send = |prompt: &Vec<u32>| {
        let mut long = request(prompt, 100, 7);
        long.sampling.ignore_eos = true;
        world.generate(long)
    };
    let in_flight: Vec<Generation> = prompts.iter().map(send).collect();
    world.until_requests(prompts.len()).await;
    drop(hold);
    for (generation, prompt) in in_flight.into_iter().zip(&prompts) {
        let outcome = collect(generation).await;
        assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
        assert_eq!(outcome.tokens, expected_output(prompt, 7, 100, VOCAB));
    }
    assert_eq!(world.engine.requests_inside(), 0);
    world.assert_no_leaks().await;
}

#[tokio::test]
async fn a_panic_of_the_executor_fails_no_request_and_loads_no_weights() {
    let (builds, world) = survives(Fault::Panic).await;
    let stats = world.engine.stats().await.expect("the engine runs");
    assert!(stats.steps > FAULT_STEP, "{stats:?}");
    let status = world.engine.unit_status();
    assert_eq!((builds, status.generation, status.died), (1, 1, None));
    world.stop().await;
}

#[tokio::test]
async fn a_lost_device_fails_no_request_and_the_executor_is_made_again() {
    recorder();
    let before = deaths_of("executor_thread");
    let (builds, world) = survives(Fault::DeviceLost).await;
    let status = world.engine.unit_status();
    let died = status.died.map(|died| died.actor);
    let expected = (2, 2, Some("executor_thread"));
    assert_eq!((builds, status.generation, died), expected);
    assert!(deaths_of("executor_thread") > before);
    world.stop().await;
}

/// An engine that loses its device at its second step. Its next executor is made once the sender is dropped.
fn held_at_rebuild() -> (World, crossbeam_channel::Sender<()>) {
    let build = Build::default();
    let mut parts = faulty_parts(&build, 2, Fault::DeviceLost);
    let (open, gate) = crossbeam_channel::unbounded::<()>();
    let _ = open.send(());
    let make = parts.executor.clone();
    parts.executor = Arc::new(move || {
        let _ = gate.recv();
        make()
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    (World { engine }, open)
}

async fn until_not_ready(world: &World) {
    within(async {
        while world.engine.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_engine_is_not_ready_while_it_is_rebuilt_and_requests_wait() {
    let (world, open) = held_at_rebuild();
    assert!(world.engine.is_ready());
    let running = world.generate(request(&[1, 2], 50, 7));
    until_not_ready(&world).await;
    let waiting = world.generate(request(&[3, 4], 50, 7));
    let asked = world.engine.stats().await.map(drop);
    assert_eq!(asked.map_err(|error| error.code()), Err("engine_down"));
    assert_eq!(world.engine.requests_inside(), 2);
    drop(open);
    assert_finished(&collect(running).await, &[1, 2], 50, 7);
    assert_finished(&collect(waiting).await, &[3, 4], 50, 7);
    assert!(world.engine.is_ready());
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn an_engine_is_shut_down_while_it_is_rebuilt() {
    let (world, open) = held_at_rebuild();
    let running = world.generate(request(&[1, 2], 50, 7));
    until_not_ready(&world).await;
    let engine = world.engine.clone();
    // The stop arrives while the model is being loaded. The rebuilt engine is stopped too.
    tokio::join!(engine.shutdown(Duration::ZERO), async { drop(open) });
    assert!(!engine.is_alive());
    let end = collect(running).await.end;
    assert!(
        matches!(end, Event::Failed(_) | Event::Cancelled(_)),
        "{end:?}"
    );
}

#[tokio::test]
async fn a_shutdown_waits_for_requests_that_wait_for_a_rebuild() {
    let (world, open) = held_at_rebuild();
    let running = world.generate(request(&[1, 2], 50, 7));
    until_not_ready(&world).await;
    tokio::join!(world.engine.shutdown(Duration::from_secs(600)), async {
        drop(open)
    });
    assert_finished(&collect(running).await, &[1, 2], 50, 7);
}

/// Parts whose executor loses its device at its second step. The next `failures` attempts to build an executor fail.
/// Also returns the number of builds.
fn hard_to_rebuild(build: &Build, failures: usize) -> (EngineParts, Arc<AtomicUsize>) {
    let mut parts = faulty_parts(build, 2, Fault::DeviceLost);
    let (make, builds) = (parts.executor.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = builds.clone();
    parts.executor = Arc::new(move || {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        if (1..=failures).contains(&number) {
            Err(LoadError::Memory(format!("attempt {number} found none")))
        } else {
            make()
        }
    });
    (parts, builds)
}

#[tokio::test]
async fn a_rebuild_that_fails_is_tried_again_until_it_works() {
    let mut build = Build::default();
    build.config.rebuild_attempts = 4;
    build.config.rebuild_backoff_s = 0.0;
    let (parts, builds) = hard_to_rebuild(&build, 3);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert_finished(&outcome, &[1, 2], 50, 7);
    assert_eq!(builds.load(Ordering::SeqCst), 5);
    assert!(world.engine.is_ready());
    // The engine has not failed: the future of `failed` is still pending.
    tokio::select! {
        biased;
        reason = world.engine.failed() => panic!("{reason}"),
        () = std::future::ready(()) => (),
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn after_the_last_attempt_the_host_learns_the_reason_and_shutdown_still_works() {
    let mut build = Build::default();
    build.config.rebuild_attempts = 3;
    build.config.rebuild_backoff_s = 0.0;
    let (parts, builds) = hard_to_rebuild(&build, usize::MAX - 1);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert!(matches!(outcome.end, Event::Failed(_)), "{outcome:?}");
    let reason = within(world.engine.failed()).await;
    assert_eq!(
        &*reason,
        "the engine died and 3 attempts to rebuild it failed; the last error: attempt 3 found none"
    );
    assert_eq!(builds.load(Ordering::SeqCst), 4);
    assert!(!world.engine.is_alive());
    // A later call gets the same reason.
    assert_eq!(within(world.engine.failed()).await, reason);
    let refused = world.engine.generate(request(&[1], 1, 7)).map(drop);
    assert_eq!(refused.map_err(|error| error.code()), Err("engine_down"));
    world.stop().await;
}

#[tokio::test]
async fn a_lost_device_that_no_load_can_use_ends_the_engine_at_once() {
    let build = Build::default();
    let mut parts = faulty_parts(&build, 2, Fault::DeviceLost);
    let (make, builds) = (parts.executor.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = builds.clone();
    parts.executor = Arc::new(move || match counted.fetch_add(1, Ordering::SeqCst) {
        0 => make(),
        _ => Err(LoadError::DeviceLost("the GPU has failed".to_owned())),
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert!(matches!(outcome.end, Event::Failed(_)), "{outcome:?}");
    let reason = within(world.engine.failed()).await;
    assert_eq!(
        &*reason,
        "the engine died and will not be rebuilt: the GPU has failed"
    );
    assert_eq!(builds.load(Ordering::SeqCst), 2);
    world.stop().await;
}

#[actix::test]
async fn waits_between_attempts_double_and_a_stop_does_not_wait_for_them() {
    let mut build = Build::default();
    build.config.rebuild_attempts = 4;
    build.config.rebuild_backoff_s = 10.0;
    // The beats of the watch would advance the clock during the attempts.
    build.config.watchdog_timeout_s = 0.0;
    let (parts, builds) = hard_to_rebuild(&build, usize::MAX - 1);
    let here = Arbiter::current();
    let engine = Engine::start_in_with(&here, build.config.clone(), parts).await;
    let engine = engine.expect("the engine starts");
    // From here on, the clock advances only when all tasks wait for it.
    tokio::time::pause();
    let mut generation = engine.generate(request(&[1, 2], 50, 7)).expect("admitted");
    while builds.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    let died = tokio::time::Instant::now();
    engine.failed().await;
    assert_eq!(died.elapsed().as_secs(), 10 + 20 + 40);
    while generation.next().await.is_some() {}
    engine.shutdown(Duration::ZERO).await;

    let (parts, builds) = hard_to_rebuild(&build, usize::MAX - 1);
    build.config.rebuild_backoff_s = 60.0;
    let engine = Engine::start_in_with(&here, build.config, parts).await;
    let engine = engine.expect("the engine starts");
    let _generation = engine.generate(request(&[1, 2], 50, 7)).expect("admitted");
    while builds.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    let before = tokio::time::Instant::now();
    engine.shutdown(Duration::ZERO).await;
    assert!(before.elapsed() < Duration::from_secs(60));
    assert_eq!(builds.load(Ordering::SeqCst), 2);
}

#[test]
fn an_engine_whose_arbiter_the_host_stops_has_failed() {
    let system = actix_rt::System::new();
    system.block_on(async {
        let arbiter = Arbiter::new();
        let build = Build::default();
        let engine =
            Engine::start_in_with(&arbiter.handle(), build.config.clone(), build.parts()).await;
        let engine = engine.expect("the engine starts");
        arbiter.stop();
        let reason = within(engine.failed()).await;
        assert!(
            reason.contains("stopped the engine's actix Arbiter"),
            "{reason}"
        );
    });
}

#[actix::test]
async fn a_panic_inside_a_control_actor_fails_no_request() {
    recorder();
    let arbiter = Arbiter::new();
    arbiter.spawn_fn(|| {
        let subscriber = PanickingSubscriber::new("souffleur_actors::scheduler", 1);
        // The subscriber stays set until the thread ends.
        std::mem::forget(tracing::subscriber::set_default(subscriber));
    });
    let (hold, gate) = crossbeam_channel::unbounded();
    let build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    // The Scheduler logs a refused step.
    let parts = faulty_parts(&build, FAULT_STEP, Fault::Reject);
    let before = deaths_of("scheduler");
    let engine = Engine::start_in_with(&arbiter.handle(), build.config, parts).await;
    let engine = engine.expect("the engine starts");
    let world = World { engine };
    finishes_all(&world, hold).await;
    assert!(deaths_of("scheduler") > before);
    let status = world.engine.unit_status();
    let died = status.died.expect("an actor died");
    assert_eq!((status.generation, died.actor), (2, "scheduler"));
    assert!(died.cause.starts_with("StepDone"), "{}", died.cause);
    world.stop().await;
    arbiter.stop();
}
