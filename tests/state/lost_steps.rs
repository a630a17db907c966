//! Tests of lost steps: the request that makes steps fail is found and fails alone, and unrelated faults fail no
//! request.

use souffleur_base::error::{RequestError, StepError};
use souffleur_request::FinishReason;
use souffleur_state::pool::state_pool::StateLimits;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::scheduler::BatchRules;
use souffleur_state::scheduler::news::RequestEnd;
use souffleur_state::step::StepPlan;

use crate::scheduler_requests::SURVIVED_LONE_LOSSES;
use crate::scheduler_world::{Ask, End, Outcome, Setup, VOCAB, World};

/// No two prompts begin with the same token.
fn prompt(number: usize, len: usize) -> Vec<u32> {
    let token = |at: usize| (number * 37 + at * 5 + 1) as u32 % VOCAB;
    (0..len).map(token).collect()
}

/// A world in which this many requests run, or wait for their chunks.
fn world(setup: Setup, n_requests: usize, max_new_tokens: usize) -> World {
    let mut world = World::new(setup);
    let ask = |number| Ask::exactly(prompt(number, 12), max_new_tokens);
    world.submit_all(&mut (0..n_requests).map(ask));
    world
}

fn large() -> Setup {
    Setup {
        n_pages: 2048,
        n_rows: 40,
        ..Setup::default()
    }
}

/// Drains the world; `cause` decides whether a step is lost, and by which cause.
fn drain(world: &mut World, cause: impl Fn(&World, &StepPlan) -> Option<String>) {
    while !world.is_idle() {
        if world.advance() {
            continue;
        }
        let before: &World = world;
        let oldest = before.oldest_step();
        let lost = oldest.and_then(|plan| cause(before, plan));
        assert!(match lost {
            Some(lost) => world.end_step_with(Outcome::LostAfterItRan, &lost),
            None => world.end_step(Outcome::Done),
        });
    }
}

fn numbers(world: &World, plan: &StepPlan) -> Vec<usize> {
    let rows = plan.rows.iter();
    rows.map(|row| world.number_of(row.seq)).collect()
}

/// The starts of each step from this one on, without steps that have none.
fn starts_from(world: &World, step: usize) -> Vec<Vec<usize>> {
    let starts = world.history[step..].iter().map(|plan| {
        let starts = plan.starts.iter();
        starts.map(|start| world.number_of(start.seq)).collect()
    });
    starts
        .filter(|starts: &Vec<usize>| !starts.is_empty())
        .collect()
}

fn has_finished(world: &World, number: usize) -> bool {
    let end = world.views[number].end.as_ref();
    matches!(
        end,
        Some(End::Reported(RequestEnd::Finished(
            FinishReason::Length { .. }
        )))
    )
}

/// Checks that the poison failed with its second loss alone, and that all others finished. `assert_clean` compares their
/// tokens with those of an undisturbed run.
fn check_poison(world: &mut World, poison: usize) {
    world.assert_clean();
    let view = &world.views[poison];
    let Some(RequestError::Step(StepError::Lost(text))) = view.failure() else {
        panic!("the poison ended with {:?}", view.end);
    };
    assert_eq!(
        text,
        "the engine ran this request alone to find the cause of failed steps, and its step failed again: poison"
    );
    assert_eq!(view.losses.len(), 3, "{:?}", view.losses);
    for number in (0..world.views.len()).filter(|number| *number != poison) {
        assert!(has_finished(world, number), "request {number}");
        let losses = &world.views[number].losses;
        assert!(losses.len() <= 1, "request {number}: {losses:?}");
        let starts = starts_from(world, 0);
        let starts = starts.iter().flatten().filter(|start| **start == number);
        // Before the loss, for the trial, and after it.
        assert!(starts.count() <= 3, "request {number}");
    }
}

#[test]
fn a_poison_among_32_fails_alone_with_its_second_lost_step_alone() {
    for at_output in [0, 3] {
        for poison in [0, 17, 31] {
            let mut world = world(large(), 32, 6);
            drain(&mut world, |world, plan| {
                let is_poisoned = numbers(world, plan).contains(&poison)
                    && world.views[poison].delivered.len() >= at_output;
                is_poisoned.then(|| "poison".to_owned())
            });
            assert_eq!(world.lost_steps, 3);
            check_poison(&mut world, poison);
        }
    }
}

#[test]
fn a_poison_is_found_in_chunks_and_mixed_steps_and_with_states_or_windows() {
    let chunked = Setup {
        page_size: 4,
        n_pages: 1024,
        chunk_tokens: Some(16),
        rules: BatchRules {
            mixed_chunk: true,
            ..BatchRules::default()
        },
        ..large()
    };
    let states = Setup {
        states: Some(StateLimits {
            total_slots: 120,
            grid_tokens: 64,
        }),
        ..chunked.clone()
    };
    let windows = Setup {
        windows: Some(WindowLimits {
            tokens: 8,
            total_pages: 1024,
        }),
        ..chunked.clone()
    };
    for setup in [chunked, states, windows] {
        for at_output in [0, 2] {
            let mut world = world(setup.clone(), 8, 6);
            drain(&mut world, |world, plan| {
                let is_poisoned = numbers(world, plan).contains(&5)
                    && world.views[5].delivered.len() >= at_output;
                is_poisoned.then(|| "poison".to_owned())
            });
            check_poison(&mut world, 5);
        }
    }
}

#[test]
fn ten_lost_steps_by_different_causes_fail_no_request() {
    for n_requests in [1, 4] {
        let mut world = world(large(), n_requests, 8);
        drain(&mut world, |world, _| {
            let lost = world.lost_steps;
            (lost < SURVIVED_LONE_LOSSES).then(|| format!("fault {lost}"))
        });
        assert_eq!(world.lost_steps, 10);
        world.assert_clean();
        assert!((0..n_requests).all(|number| has_finished(&world, number)));
    }
}

#[test]
fn a_request_that_breaks_every_step_by_another_cause_fails() {
    let mut world = world(large(), 3, 8);
    drain(&mut world, |world, plan| {
        let is_poisoned = numbers(world, plan).contains(&1);
        is_poisoned.then(|| format!("fault {}", world.lost_steps))
    });
    // The first loss was shared.
    assert_eq!(world.lost_steps, 1 + SURVIVED_LONE_LOSSES + 1);
    world.assert_clean();
    let ends = (0..3).map(|number| has_finished(&world, number));
    assert_eq!(ends.collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn losses_alone_do_not_add_up_if_the_request_is_cleared_between_them() {
    let mut world = world(large(), 1, 200);
    drain(&mut world, |world, plan| {
        let is_due = plan.step.get().is_multiple_of(7) && !world.states.scheduler.has_suspects();
        is_due.then(|| "fault".to_owned())
    });
    assert!(world.lost_steps > SURVIVED_LONE_LOSSES + 1);
    world.assert_clean();
    assert!(has_finished(&world, 0));
}

#[test]
fn one_cause_that_never_meets_a_suspect_alone_fails_no_request() {
    let mut world = world(large(), 6, 200);
    drain(&mut world, |world, plan| {
        let is_due = world.lost_steps < 10
            && plan.step.get().is_multiple_of(7)
            && !world.states.scheduler.has_suspects();
        is_due.then(|| "fault".to_owned())
    });
    assert_eq!(world.lost_steps, 10);
    world.assert_clean();
    assert!((0..6).all(|number| has_finished(&world, number)));
}

/// Three requests whose first step was lost; the first one is tried.
fn in_trials() -> World {
    let mut world = world(large(), 3, 8);
    world.finish_plan();
    world.end_step_with(Outcome::LostAfterItRan, "fault");
    world.end_step(Outcome::Done);
    world.finish_plan();
    assert!(world.states.scheduler.has_suspects());
    assert_eq!(starts_from(&world, 0), [vec![0, 1, 2], vec![0]]);
    world
}

#[test]
fn a_request_that_arrives_during_trials_starts_after_them_and_the_last_suspect_goes_on() {
    let mut world = in_trials();
    world.submit(Ask::exactly(prompt(3, 12), 8));
    world.assert_clean();
    assert_eq!(
        starts_from(&world, 0),
        [vec![0, 1, 2], vec![0], vec![1], vec![2], vec![0, 1, 3]]
    );
    // The first two steps are the lost one and the one in flight with it.
    let tried = world.history[2..].iter();
    let mut tried = tried.take_while(|plan| plan.starts.len() < 3);
    assert!(tried.all(|plan| plan.rows.len() == 1));
}

#[test]
fn a_cancelled_suspect_leaves_its_trial_at_once_and_the_next_one_is_tried() {
    // Request 0 is on trial, request 1 waits for its trial.
    for cancelled in [0, 1] {
        let mut world = in_trials();
        world.cancel(cancelled);
        world.assert_clean();
        let rest: Vec<usize> = (0..3).filter(|number| *number != cancelled).collect();
        assert!(rest.iter().all(|number| has_finished(&world, *number)));
        let tried = match cancelled {
            0 => vec![vec![0], vec![1], vec![2], vec![1]],
            _ => vec![vec![0], vec![2], vec![0]],
        };
        assert_eq!(starts_from(&world, 1), tried);
    }
}

#[test]
fn a_paused_scheduler_tries_no_suspect_and_continues_when_it_is_resumed() {
    let mut world = in_trials();
    world.set_paused(true);
    loop {
        world.finish_plan();
        if !world.end_step(Outcome::Done) {
            break;
        }
    }
    let n_steps = world.history.len();
    world.pass_time(1.0);
    assert!(!world.advance());
    assert_eq!((world.history.len(), world.depth()), (n_steps, 0));
    assert!(world.states.scheduler.has_suspects());
    world.set_paused(false);
    world.assert_clean();
    assert_eq!(
        starts_from(&world, 0),
        [vec![0, 1, 2], vec![0], vec![1], vec![2], vec![0, 1]]
    );
    assert!((0..3).all(|number| has_finished(&world, number)));
}

#[test]
fn a_suspect_whose_time_has_passed_leaves_the_trials() {
    let mut world = World::new(large());
    let ask = |number| {
        let mut ask = Ask::exactly(prompt(number, 12), 8);
        ask.timeouts.running_s = (number == 1).then_some(5.0);
        ask
    };
    world.submit_all(&mut (0..3).map(ask));
    world.finish_plan();
    // The first call after the admission starts the time.
    world.pass_time(1.0);
    world.end_step_with(Outcome::LostAfterItRan, "fault");
    world.end_step(Outcome::Done);
    world.finish_plan();
    world.pass_time(6.0);
    world.assert_clean();
    assert!(world.views[1].timed_out());
    assert!(has_finished(&world, 0) && has_finished(&world, 2));
}
