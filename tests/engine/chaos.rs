//! Tests of engines into which `--chaos` injects faults.

use std::sync::Arc;

use futures_util::future::join_all;
use souffleur_base::error::{RequestError, StepError};
use souffleur_request::Event;

use super::world::{Build, Outcome, World, assert_finished, collect, request};

const REQUESTS: u32 = 8;
const LENGTH: u32 = 40;

/// An engine with faults, whose executor launches steps ahead or computes them at once.
fn start(specs: &[&str], is_ahead: bool) -> World {
    let mut build = Build {
        max_in_flight: is_ahead.then(Arc::default),
        ..Build::default()
    };
    let specs = specs.iter().map(|spec| spec.parse());
    build.config.chaos = specs.map(|spec| spec.expect("a valid spec")).collect();
    build.start()
}

fn prompt(index: u32) -> Vec<u32> {
    (1..20).map(|token| token * 7 + index).collect()
}

async fn all(world: &World) -> Vec<Outcome> {
    let sent = (0..REQUESTS).map(|index| {
        let request = request(&prompt(index), LENGTH, u64::from(index));
        collect(world.generate(request))
    });
    join_all(sent).await
}

#[tokio::test]
async fn lost_steps_change_no_output() {
    for is_ahead in [false, true] {
        let lose = |after: u32| format!("actor=executor_thread,kind=lose,after={after}");
        let world = start(&[&lose(4), &lose(20)], is_ahead);
        for (index, outcome) in (0..).zip(&all(&world).await) {
            assert_finished(outcome, &prompt(index), LENGTH, u64::from(index));
        }
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_rejected_step_fails_its_requests_with_the_cause() {
    let world = start(&["actor=executor_thread,kind=reject,after=5"], false);
    let cause = "chaos: reject 1 in executor_thread at launch (entry)";
    let mut n_failed = 0;
    for (index, outcome) in (0..).zip(&all(&world).await) {
        match &outcome.end {
            Event::Failed(RequestError::Step(StepError::Rejected(why))) => {
                assert_eq!(why, cause);
                n_failed += 1;
            }
            _ => assert_finished(outcome, &prompt(index), LENGTH, u64::from(index)),
        }
    }
    assert!(n_failed > 0);
    world.assert_no_leaks().await;
    world.stop().await;
}
