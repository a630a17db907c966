//! Tests of the end of an engine: a thread hangs, or actors die too often. Other engines of the process go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use souffleur::beat::Beat;
use souffleur::engine::{Engine, Generation};
use souffleur::error::StepError;
use souffleur::executor::{DeviceLost, Executor};
use souffleur::request::Event;
use souffleur::state::step::{StepOutput, StepPlan};

use super::doubles::{Fault, faulty_parts};
use super::world::{Build, World, assert_finished, collect, request, within};

/// Longer than a busy machine keeps a thread waiting, so that only the double hangs.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A build whose threads are watched with [`TIMEOUT`].
fn watched() -> Build {
    let mut build = Build::default();
    build.config.watchdog_timeout_s = TIMEOUT.as_secs_f64();
    build
}

async fn assert_serves(world: &World) {
    let outcome = collect(world.generate(request(&[3, 4], 20, 7))).await;
    assert_finished(&outcome, &[3, 4], 20, 7);
}

/// The outcome of a request whose engine has ended.
async fn assert_down(generation: Generation) {
    let outcome = collect(generation).await;
    match &outcome.end {
        Event::Failed(error) => assert_eq!(error.code(), "engine_down"),
        other => panic!("ended with {other:?}"),
    }
}

#[tokio::test]
async fn a_hung_executor_ends_its_engine_and_no_other() {
    let (hold, gate) = crossbeam_channel::unbounded();
    let hung = Build {
        gate: Some(gate),
        ..watched()
    };
    let hung = hung.start();
    let other = Build::default().start();
    let send = |first| hung.generate(request(&[first, 2], 50, 7));
    let streams: Vec<Generation> = (1..5).map(send).collect();
    let reason = within(hung.engine.failed()).await;
    assert!(
        reason.starts_with("the executor has finished no layer for 1 s"),
        "{reason}"
    );
    assert_eq!(hung.engine.failure_reason(), Some(reason));
    assert!(hung.engine.is_over());
    for stream in streams {
        assert_down(stream).await;
    }
    let refused = hung.engine.generate(request(&[1], 1, 7)).map(drop);
    assert_eq!(refused.map_err(|error| error.code()), Err("engine_down"));
    // Does not wait for the executor, which still hangs.
    hung.stop().await;
    assert_serves(&other).await;
    let next = Build::default().start();
    assert_serves(&next).await;
    drop(hold);
    other.stop().await;
    next.stop().await;
}

#[tokio::test]
async fn a_hung_tokenizer_ends_its_requests() {
    let mut build = watched();
    let hang = "actor=tokenizer,kind=hang_hard,message=TokensReady,phase=entry,after=3";
    build.config.chaos = vec![hang.parse().expect("a valid spec")];
    let world = build.start();
    let send = |first| world.generate(request(&[first, 2], 50, 7));
    let streams: Vec<Generation> = (1..5).map(send).collect();
    let reason = within(world.engine.failed()).await;
    assert!(
        reason.starts_with("the thread of the tokenizer has handled no message for 1 s"),
        "{reason}"
    );
    for stream in streams {
        assert_down(stream).await;
    }
    // Does not wait for the thread, which still hangs.
    world.stop().await;
}

/// An executor whose first step takes long, and beats meanwhile.
struct SlowExecutor {
    inner: Box<dyn Executor>,
    takes: Option<Duration>,
    beat: Beat,
}

impl Executor for SlowExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let began = Instant::now();
        let takes = self.takes.take().unwrap_or_default();
        while began.elapsed() < takes {
            self.beat.beat();
            // The time of a layer.
            std::thread::sleep(Duration::from_millis(5));
        }
        self.inner.run(plan)
    }

    fn set_beat(&mut self, beat: Beat) {
        self.beat = beat;
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}

#[tokio::test]
async fn a_step_that_beats_for_longer_than_the_timeout_is_no_hang() {
    let build = watched();
    let mut parts = build.parts();
    let make = parts.executor.clone();
    parts.executor = Arc::new(move || {
        Ok(Box::new(SlowExecutor {
            inner: make()?,
            takes: Some(3 * TIMEOUT),
            beat: Beat::default(),
        }) as Box<dyn Executor>)
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    assert_serves(&world).await;
    assert_eq!(world.engine.failure_reason(), None);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn one_death_more_than_allowed_ends_the_engine() {
    let mut build = Build::default();
    build.config.max_restarts = "0/60s".parse().expect("a limit");
    let parts = faulty_parts(&build, 2, Fault::DeviceLost);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    assert_down(world.generate(request(&[1, 2], 50, 7))).await;
    let reason = within(world.engine.failed()).await;
    assert!(reason.contains("(--max-restarts)"), "{reason}");
    world.stop().await;
}
