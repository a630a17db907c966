//! One step ahead: the executor has the next step before the previous result is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::StepId;
use souffleur_request::{Event, GenerateRequest};

use crate::requests::first_of;

use super::world::{Build, Outcome, World, assert_finished, collect, request, within};

const REQUESTS: u32 = 12;

fn build() -> (Build, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let build = Build {
        ahead: Some(most.clone()),
        ..Build::default()
    };
    (build, most)
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
async fn a_step_is_launched_before_the_one_before_has_ended() {
    let (build, most) = build();
    let world = build.start();
    let outcomes = all(&world).await;
    for (index, outcome) in (0..).zip(&outcomes) {
        assert_finished(outcome, &prompt(index), length(index), u64::from(index));
    }
    assert_eq!(most.load(Ordering::Relaxed), 2);
    world.assert_whole().await;
    world.stop().await;
}

#[tokio::test]
async fn retractions_change_no_output() {
    let (mut build, most) = build();
    let (open, gate) = crossbeam_channel::unbounded();
    build.gate = Some(gate);
    (build.n_pages, build.rows) = (300, 16);
    build.config.schedule_conservativeness = 0.01;
    // All prompts in one step: a bound on step time would admit them one after the other.
    build.config.max_prefill_step_ms = 0;
    let world = build.start();
    // The first two are of the longest: both do not fit.
    let order = first_of([3, 7], REQUESTS);
    let sent = world
        .send_behind_first(order.iter().map(|index| request_of(*index)))
        .await;
    drop(open);
    let outcomes = join_all(sent.into_iter().map(collect)).await;
    for (outcome, index) in outcomes.iter().zip(order) {
        assert_finished(outcome, &prompt(index), length(index), u64::from(index));
    }
    let stats = world.assert_whole().await;
    assert!(stats.retractions > 0);
    assert_eq!(most.load(Ordering::Relaxed), 2);
    world.stop().await;
}

#[tokio::test]
async fn a_lost_step_takes_its_successor_with_it_and_both_are_computed_again() {
    let (mut build, _) = build();
    let lost = |step| (StepId::new(step), StepError::Lost("a fault".to_owned()));
    build.faults = vec![lost(4), lost(20)];
    let world = build.start();
    let outcomes = all(&world).await;
    for (index, outcome) in (0..).zip(&outcomes) {
        assert_finished(outcome, &prompt(index), length(index), u64::from(index));
    }
    world.assert_whole().await;
    world.stop().await;
}

#[tokio::test]
async fn a_step_refused_behind_another_fails_its_requests_in_its_turn() {
    let (mut build, most) = build();
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
    assert_eq!(most.load(Ordering::Relaxed), 2);
    let again = collect(world.generate(request(&prompt(0), 20, 0))).await;
    assert_finished(&again, &prompt(0), 20, 0);
    world.assert_whole().await;
    world.stop().await;
}

#[tokio::test]
async fn an_engine_stops_with_steps_under_way() {
    let (build, _) = build();
    let world = build.start();
    let mut endless = request(&prompt(0), 2000, 7);
    endless.sampling.ignore_eos = true;
    let mut running = world.generate(endless);
    assert!(matches!(running.next().await, Some(Event::Delta(_))));
    within(world.engine.shutdown(Duration::ZERO)).await;
    // Each has an end, whichever it is.
    collect(running).await;
}
