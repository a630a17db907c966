//! Tests of message logs of an engine whose prefill steps are bounded by time.

use super::*;

fn paced() -> ControlSetup {
    let mut setup = setup();
    setup.limits.rules.max_prefill_step_ms = Some(2);
    setup
}

#[test]
fn steps_that_are_cut_by_time_are_replayed_without_a_clock() {
    let setup = paced();
    let log = log_with(&setup, NO_LIMIT, |sink| {
        let engine = Engine::with(&setup, Some(sink.recorder(1)));
        let engine = submit_rounds_to(engine, 120);
        // Longer prefills are mixed with decodes.
        assert!(engine.states.scheduler.stats().mixed_steps > 0);
    });
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    assert!(replayed.counts.steps > 100 && replayed.counts.requests > 120);

    // Other step durations produce other plans.
    let mut entries = entries_of(&log);
    let mut n_times = 0;
    for entry in &mut entries {
        if let Entry::StepTook { micros, .. } = entry {
            *micros = 1;
            n_times += 1;
        }
    }
    assert!(n_times > 20);
    let replayed = replay_of(&made_up(&setup, &entries)).expect("it can be replayed");
    let difference = replayed.difference.expect("the steps are not cut");
    assert!(difference.step.is_some(), "{difference}");
}

#[test]
fn without_a_bound_no_time_is_written() {
    let entries = entries_of(&log_of(NO_LIMIT, busy));
    let is_time = |entry: &Entry| matches!(entry, Entry::StepTook { .. });
    assert!(!entries.iter().any(is_time));
}
