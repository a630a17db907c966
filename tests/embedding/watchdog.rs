//! Tests of deaths of actors and threads: every request in flight gets one failure, and the engine restarts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_rt::Arbiter;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use souffleur::engine::{Engine, EngineParts, Generation};
use souffleur::error::LoadError;
use souffleur::request::Event;

use super::doubles::{Fault, faulty_parts};
use super::world::{Build, World, assert_finished, collect, request, within};

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

/// Triggers the fault while eight requests run, then checks that the engine works again.
async fn dies_and_recovers(world: World, hold: crossbeam_channel::Sender<()>) {
    let prompts: Vec<Vec<u32>> = (0..8)
        .map(|i| (1..40).map(|t| t * 5 + i).collect())
        .collect();
    let send = |prompt: &Vec<u32>| {
        let mut endless = request(prompt, 1000, 7);
        endless.sampling.ignore_eos = true;
        world.generate(endless)
    };
    let in_flight: Vec<Generation> = prompts.iter().map(send).collect();
    world.until_requests(prompts.len()).await;
    drop(hold);
    for mut generation in in_flight {
        let mut ends = Vec::new();
        while let Some(event) = within(generation.next()).await {
            if event.is_terminal() {
                ends.push(event);
            }
        }
        match ends.as_slice() {
            [Event::Failed(error)] => assert_eq!(error.code(), "engine_down"),
            other => panic!("ended with {other:?}"),
        }
    }
    within(async {
        while !world.engine.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(world.engine.requests_inside(), 0);
    for prompt in &prompts {
        assert_finished(
            &collect(world.generate(request(prompt, 50, 7))).await,
            prompt,
            50,
            7,
        );
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_panic_of_the_executor_fails_each_request_once_and_the_engine_is_rebuilt() {
    recorder();
    let (hold, gate) = crossbeam_channel::unbounded();
    let build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    let parts = faulty_parts(&build, FAULT_STEP, Fault::Panic);
    let before = deaths_of("executor_thread");
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    dies_and_recovers(World { engine }, hold).await;
    assert!(deaths_of("executor_thread") > before);
}

#[tokio::test]
async fn an_engine_is_not_ready_while_it_is_rebuilt() {
    let build = Build::default();
    let mut parts = faulty_parts(&build, 2, Fault::Panic);
    let (open, gate) = crossbeam_channel::unbounded::<()>();
    // The first executor is made at once, the second when the test allows it.
    let _ = open.send(());
    let make = parts.executor.clone();
    parts.executor = std::sync::Arc::new(move || {
        let _ = gate.recv();
        make()
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    assert!(engine.is_ready());
    let world = World { engine };
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert!(matches!(outcome.end, Event::Failed(_)));
    within(async {
        while world.engine.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let refused = world.engine.generate(request(&[1, 2], 50, 7)).map(drop);
    assert_eq!(refused.map_err(|error| error.code()), Err("engine_down"));
    assert_eq!(world.engine.requests_inside(), 0);
    let _ = open.send(());
    within(async {
        while !world.engine.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_finished(
        &collect(world.generate(request(&[1, 2], 50, 7))).await,
        &[1, 2],
        50,
        7,
    );
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn an_engine_is_shut_down_while_it_is_rebuilt() {
    let build = Build::default();
    let mut parts = faulty_parts(&build, 2, Fault::Panic);
    let (open, gate) = crossbeam_channel::unbounded::<()>();
    let _ = open.send(());
    let make = parts.executor.clone();
    parts.executor = std::sync::Arc::new(move || {
        let _ = gate.recv();
        make()
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert!(matches!(outcome.end, Event::Failed(_)));
    let engine = world.engine.clone();
    // The stop arrives while the model is being loaded. The rebuilt engine is stopped too.
    tokio::join!(world.stop(), engine.shutdown(Duration::ZERO), async {
        drop(open)
    });
    assert!(!engine.is_alive());
}

/// Parts whose executor panics at its second step. The next `failures` attempts to build an executor fail. Also returns
/// the number of builds.
fn hard_to_rebuild(build: &Build, failures: usize) -> (EngineParts, Arc<AtomicUsize>) {
    let mut parts = faulty_parts(build, 2, Fault::Panic);
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

async fn die(world: &World) {
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert!(matches!(outcome.end, Event::Failed(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_rebuild_that_fails_is_tried_again_until_it_works() {
    let mut build = Build::default();
    build.config.rebuild_attempts = 4;
    build.config.rebuild_backoff_s = 0.0;
    let (parts, builds) = hard_to_rebuild(&build, 3);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    die(&world).await;
    within(async {
        while !world.engine.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(builds.load(Ordering::SeqCst), 5);
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert_finished(&outcome, &[1, 2], 50, 7);
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
    die(&world).await;
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

#[actix::test]
async fn waits_between_attempts_double_and_a_stop_does_not_wait_for_them() {
    let mut build = Build::default();
    build.config.rebuild_attempts = 4;
    build.config.rebuild_backoff_s = 10.0;
    let (parts, _) = hard_to_rebuild(&build, usize::MAX - 1);
    let here = Arbiter::current();
    let engine = Engine::start_in_with(&here, build.config.clone(), parts).await;
    let engine = engine.expect("the engine starts");
    // From here on, the clock advances only when all tasks wait for it.
    tokio::time::pause();
    let mut generation = engine.generate(request(&[1, 2], 50, 7)).expect("admitted");
    while generation.next().await.is_some() {}
    let died = tokio::time::Instant::now();
    engine.failed().await;
    assert_eq!(died.elapsed().as_secs(), 10 + 20 + 40);
    engine.shutdown(Duration::ZERO).await;

    let (parts, builds) = hard_to_rebuild(&build, usize::MAX - 1);
    build.config.rebuild_backoff_s = 60.0;
    let engine = Engine::start_in_with(&here, build.config, parts).await;
    let engine = engine.expect("the engine starts");
    let mut generation = engine.generate(request(&[1, 2], 50, 7)).expect("admitted");
    while generation.next().await.is_some() {}
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

/// A subscriber that panics once, at the first event that the Scheduler logs on this thread.
struct PanickingSubscriber(AtomicBool);

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "souffleur_actors::scheduler"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        if self.0.swap(false, Ordering::SeqCst) {
            panic!("inside the Scheduler's handler");
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[actix::test]
async fn a_panic_inside_a_control_actor_fails_each_request_once_and_the_engine_is_rebuilt() {
    recorder();
    let arbiter = Arbiter::new();
    arbiter.spawn_fn(|| {
        let subscriber = PanickingSubscriber(AtomicBool::new(true));
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
    dies_and_recovers(
        World {
            engine: engine.expect("the engine starts"),
        },
        hold,
    )
    .await;
    assert!(deaths_of("scheduler") > before);
    arbiter.stop();
}
