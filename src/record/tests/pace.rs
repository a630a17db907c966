//! Tests of message logs of an engine that limits the duration of prefill steps.

use super::*;

fn paced() -> ControlSetup {
    let mut setup = setup();
    setup.limits.rules.max_prefill_step_ms = Some(2);
    setup
}

#[test]
fn steps_limited_by_duration_are_replayed_without_a_clock() {
    let setup = paced();
    let log = log_with(&setup, NO_LIMIT, |sink| {
        let engine = Engine::with_setup(&setup, Some(sink.recorder(1)));
        let engine = submit_rounds_to(engine, 120);
        // Long prefills are mixed with decodes.
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
    let replayed = replay_of(&forged(&setup, &entries)).expect("it can be replayed");
    let difference = replayed.difference.expect("faster steps get more tokens");
    assert!(difference.step.is_some(), "{difference}");
}

#[test]
fn without_a_limit_no_duration_is_written() {
    let entries = entries_of(&log_of(NO_LIMIT, busy));
    let is_time = |entry: &Entry| matches!(entry, Entry::StepTook { .. });
    assert!(!entries.iter().any(is_time));
}
