//! Tests of pipelined steps: the engine launches a step before it reads the result of the previous step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::StepId;
use souffleur_engine::Engine;
use souffleur_executor::{DeviceLost, Executor, Launch};
use souffleur_request::{Event, GenerateRequest};
use souffleur_state::step::{PIPELINE_DEPTH, RowResult, StepOutput, StepPlan};

use crate::requests::first_of;

use super::world::{Build, Outcome, World, assert_finished, collect, request, within};

const REQUESTS: u32 = 12;

fn build() -> (Build, Arc<AtomicUsize>) {
    let max_in_flight = Arc::new(AtomicUsize::new(0));
    let build = Build {
        max_in_flight: Some(max_in_flight.clone()),
        ..Build::default()
    };
    (build, max_in_flight)
}

fn prompt(index: u32) -> Vec<u32> {
    (1..20).map(|token| token * 7 + index).collect()
}

fn length(index: u32) -> u32 {
    20 + 40 * (index % 4)
}

fn request_of(index: u32) -> GenerateRequest {
    request(&prompt(index), length(index), u64::from(index))
}

async fn all(world: &World) -> Vec<Outcome> {
    let sent = (0..REQUESTS).map(|index| collect(world.generate(request_of(index))));
    join_all(sent).await
}

#[tokio::test]
async fn a_step_is_launched_before_the_previous_one_ends() {
    let (build, max_in_flight) = build();
    let world = build.start();
    let outcomes = all(&world).await;
    for (index, outcome) in (0..).zip(&outcomes) {
        assert_finished(outcome, &prompt(index), length(index), u64::from(index));
    }
    assert_eq!(max_in_flight.load(Ordering::Relaxed), 2);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn retractions_change_no_output() {
    let (mut build, max_in_flight) = build();
    let (open, gate) = crossbeam_channel::unbounded();
    build.gate = Some(gate);
    (build.n_pages, build.rows) = (300, 16);
    build.config.schedule_conservativeness = 0.01;
    // Admits all prompts in one step. A limit on step time would admit them one by one.
    build.config.max_prefill_step_ms = 0;
    let world = build.start();
    // The first two requests are among the longest, and their outputs do not fit into the pool together.
    let order = first_of([3, 7], REQUESTS);
    let sent = world
        .send_first_alone(order.iter().map(|index| request_of(*index)))
        .await;
    drop(open);
    let outcomes = join_all(sent.into_iter().map(collect)).await;
    for (outcome, index) in outcomes.iter().zip(order) {
        assert_finished(outcome, &prompt(index), length(index), u64::from(index));
    }
    let stats = world.assert_no_leaks().await;
    assert!(stats.retractions > 0);
    assert_eq!(max_in_flight.load(Ordering::Relaxed), 2);
    world.stop().await;
}

#[tokio::test]
async fn a_lost_step_and_the_step_launched_after_it_are_computed_again() {
    let (mut build, _) = build();
    // By different causes: the second one may meet a request that is tried alone after the first.
    let lost = |step| (StepId::new(step), StepError::Lost(format!("fault {step}")));
    build.faults = vec![lost(4), lost(20)];
    let world = build.start();
    let outcomes = all(&world).await;
    for (index, outcome) in (0..).zip(&outcomes) {
        assert_finished(outcome, &prompt(index), length(index), u64::from(index));
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

/// An executor that panics once, when two steps are in flight.
struct PanickingExecutor {
    inner: Box<dyn Executor>,
    in_flight: usize,
    is_due: Arc<AtomicBool>,
}

impl Executor for PanickingExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.inner.run(plan)
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        let launched = self.inner.launch(plan)?;
        self.in_flight += 1;
        Ok(launched)
    }

    fn is_finished(&mut self) -> bool {
        self.inner.is_finished()
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        let is_full = self.in_flight == PIPELINE_DEPTH;
        if is_full && self.is_due.swap(false, Ordering::Relaxed) {
            panic!("planted");
        }
        self.in_flight -= 1;
        self.inner.finish()
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.in_flight = 0;
        self.inner.reset()
    }
}

#[tokio::test]
async fn both_steps_in_flight_are_computed_again_after_a_panic() {
    let (build, _) = build();
    let mut parts = build.parts();
    let (make, is_due) = (parts.executor.clone(), Arc::new(AtomicBool::new(true)));
    let (builds, shared) = (Arc::new(AtomicUsize::new(0)), is_due.clone());
    let counted = builds.clone();
    parts.executor = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(PanickingExecutor {
            inner: make()?,
            in_flight: 0,
            is_due: shared.clone(),
        }))
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let outcomes = all(&world).await;
    for (index, outcome) in (0..).zip(&outcomes) {
        assert_finished(outcome, &prompt(index), length(index), u64::from(index));
    }
    assert!(!is_due.load(Ordering::Relaxed), "the executor panicked");
    assert_eq!(builds.load(Ordering::Relaxed), 1);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_refused_step_fails_its_requests_after_the_previous_step() {
    let (mut build, max_in_flight) = build();
    build.faults = vec![(StepId::new(20), StepError::Rejected("a fault".to_owned()))];
    let world = build.start();
    let outcomes = all(&world).await;
    let mut n_failed = 0;
    for (index, outcome) in (0..).zip(&outcomes) {
        match &outcome.end {
            Event::Failed(RequestError::Step(StepError::Rejected(_))) => n_failed += 1,
            _ => assert_finished(outcome, &prompt(index), length(index), u64::from(index)),
        }
    }
    assert!(n_failed > 0, "{outcomes:?}");
    assert_eq!(max_in_flight.load(Ordering::Relaxed), 2);
    let again = collect(world.generate(request(&prompt(0), 20, 0))).await;
    assert_finished(&again, &prompt(0), 20, 0);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn an_engine_stops_with_steps_in_flight() {
    let (build, _) = build();
    let world = build.start();
    let mut endless = request(&prompt(0), 2000, 7);
    endless.sampling.ignore_eos = true;
    let mut running = world.generate(endless);
    assert!(matches!(running.next().await, Some(Event::Delta(_))));
    within(world.engine.shutdown(Duration::ZERO)).await;
    // The request ends, with any terminal event.
    collect(running).await;
}
