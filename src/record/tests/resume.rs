//! Tests of message logs of units that die, whose next generations continue the requests.

use super::*;
use crate::entry::ResumeEntry;
use souffleur_state::scheduler::submission::Resume;

/// Tokens that a request generates, unless it samples an end-of-sequence token.
const LENGTH: u32 = 20;

/// Runs three generations of a unit. The first two end while some clients were told tokens and others were told none.
fn with_deaths(sink: &Arc<LogSink>) {
    let mut engine = Engine::new(sink, 1);
    for generation in 2..=3 {
        for number in 0..5 {
            let prompt: Vec<u32> = (0..20).map(|token| (token * 3 + number) % VOCAB).collect();
            engine.submit(&prompt, LENGTH);
        }
        for _ in 0..6 {
            engine.end_step();
        }
        engine.submit(&[7, 8, 9], LENGTH);
        engine = engine.successor(sink, generation);
    }
    engine.drain();
    assert!(engine.live.is_empty(), "{:?}", engine.live.keys());
}

fn resumptions_in(entries: &[Entry]) -> Vec<&ResumeEntry> {
    let resumptions = entries.iter().filter_map(|entry| match entry {
        Entry::Resume(resumed) => Some(resumed.as_ref()),
        _ => None,
    });
    resumptions.collect()
}

fn told_resumption(entries: &[Entry]) -> ResumeEntry {
    let mut resumptions = resumptions_in(entries).into_iter();
    let told = resumptions.find(|resumed| !resumed.told.is_empty());
    told.expect("a client was told tokens").clone()
}

#[test]
fn requests_that_continue_after_deaths_are_replayed_to_the_same_plans() {
    let log = log_of(NO_LIMIT, with_deaths);
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    let entries = entries_of(&log);
    let resumptions = resumptions_in(&entries);
    let told = resumptions.iter().filter(|entry| !entry.told.is_empty());
    let n_told = told.count();
    let n_untold = resumptions.len() - n_told;
    assert!(n_told > 0 && n_untold > 0, "{n_told}, {n_untold}");
    let counts = replayed.counts;
    assert_eq!(counts.resumed, resumptions.len() as u64);
    assert_eq!((counts.units, counts.requests), (3, 12));
    assert_eq!(counts.prompt_tokens, 2 * (5 * 20 + 3));
    let floors = entries
        .iter()
        .filter(|entry| matches!(entry, Entry::IdFloor { .. }));
    assert_eq!(floors.count(), 2);
}

#[test]
fn a_pin_that_continues_after_a_death_is_replayed() {
    let prompt: Vec<u32> = (0..20).collect();
    let log = log_of(NO_LIMIT, |sink| {
        let mut engine = Engine::new(sink, 1);
        engine.submit(&prompt, LENGTH);
        engine.drain();
        let namespace = Namespace::new(None, Some("salt"));
        let tokens: Arc<[u32]> = prompt.as_slice().into();
        let pinned = engine.states.scheduler.pin(namespace, tokens, 50);
        engine.drive();
        let held = engine.states.scheduler.held_pins();
        assert_eq!((Ok(held[0].pin), held[0].tokens.len()), (pinned, 20));
        let mut next = engine.successor(sink, 2);
        for pin in held {
            next.states.scheduler.restore_pin(pin);
        }
        for _ in 0..3 {
            next.submit(&prompt, LENGTH);
        }
        next.drain();
        assert_eq!(next.states.scheduler.stats().protected_tokens, 20);
    });
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    let is_pin = |entry: &Entry| matches!(entry, Entry::RestorePin { .. });
    let mut entries = entries_of(&log);
    assert!(entries.iter().any(is_pin));
    entries.retain(|entry| !is_pin(entry));
    let replayed = replay_of(&forged(&setup(), &entries)).expect("it can be replayed");
    assert!(replayed.difference.is_some());
}

#[test]
fn a_changed_told_token_is_a_difference() {
    let mut entries = entries_of(&log_of(NO_LIMIT, with_deaths));
    let told = entries.iter_mut().find_map(|entry| match entry {
        Entry::Resume(resumed) if !resumed.told.is_empty() => Some(&mut resumed.told),
        _ => None,
    });
    let told = told.expect("a client was told tokens");
    let mut changed = told.to_vec();
    changed[0] = (changed[0] + 1) % VOCAB;
    *told = changed.into();
    let replayed = replay_of(&forged(&setup(), &entries)).expect("it can be replayed");
    let difference = replayed.difference.expect("the step has another token");
    assert_eq!(difference.message, "RunStep");
    assert!(difference.at.field.ends_with("tokens_sum"), "{difference}");
}

#[test]
fn smaller_ids_than_the_recorded_ones_are_a_difference() {
    let mut entries = entries_of(&log_of(NO_LIMIT, with_deaths));
    entries.retain(|entry| !matches!(entry, Entry::IdFloor { .. }));
    let replayed = replay_of(&forged(&setup(), &entries)).expect("it can be replayed");
    let difference = replayed.difference.expect("the ids begin at 1 again");
    assert_eq!(difference.after, "Resume");
}

#[test]
fn a_cancel_flag_raised_before_its_request_continues_is_replayed() {
    let log = log_of(NO_LIMIT, |sink| {
        let mut engine = Engine::new(sink, 1);
        let (_, flag) = engine.submit(&[1, 2, 3], LENGTH);
        engine.submit(&[4, 5, 6], LENGTH);
        flag.raise();
        engine.successor(sink, 2).drain();
    });
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    let mut entries = entries_of(&log);
    let is_seen = |entry: &Entry| matches!(entry, Entry::CancelsSeen(_));
    let seen = entries.iter().position(is_seen);
    let seen = seen.expect("the state saw the flag");
    assert!(matches!(entries[seen - 1], Entry::Resume(_)));
    entries.remove(seen);
    let replayed = replay_of(&forged(&setup(), &entries)).expect("it can be replayed");
    assert!(replayed.difference.is_some());
}

#[test]
fn the_first_message_of_the_first_generation_is_not_written() {
    let log = |resumes: bool| {
        log_of(NO_LIMIT, |sink| {
            let mut engine = Engine::new(sink, 1);
            if resumes {
                engine.states.scheduler.resume(Resume::default(), 1.0);
            }
            engine.submit(&[1, 2, 3], LENGTH);
            engine.drain();
        })
    };
    assert!(log(true) == log(false));
}

#[test]
fn the_error_for_an_inconsistent_resumption_shows_the_cause() {
    let refused = |entry: Entry, part: &str| {
        let start = Entry::Start { generation: 2 };
        let replayed = replay_of(&forged(&setup(), &[start, entry]));
        let text = replayed.expect_err("it is inconsistent").to_string();
        assert!(text.contains("record 2") && text.contains(part), "{text}");
    };
    let intact = told_resumption(&entries_of(&log_of(NO_LIMIT, with_deaths)));
    let changed = |change: &dyn Fn(&mut ResumeEntry), part: &str| {
        let mut entry = intact.clone();
        change(&mut entry);
        refused(Entry::Resume(Box::new(entry)), part);
    };
    changed(
        &|entry| entry.told = vec![1; LENGTH as usize].into(),
        "after 20 output tokens, its limit is 20",
    );
    changed(
        &|entry| entry.submitted.opening = [VOCAB].into(),
        "opening tokens",
    );
    changed(
        &|entry| entry.input_logprobs = u32::MAX,
        "log probabilities already sent",
    );
    changed(
        &|entry| entry.submitted.request.prompt = Arc::default(),
        "empty prompt",
    );
    for (step, sequences) in [(u64::MAX, 0), (0, u64::MAX)] {
        refused(Entry::IdFloor { step, sequences }, "the limit is");
    }
    let pin = Entry::RestorePin {
        pin: u64::MAX,
        namespace: (&Namespace::default()).into(),
        tokens: Arc::default(),
        expires_s: 0,
    };
    refused(pin, "the limit is");
}

#[test]
fn a_damaged_resumption_is_an_error_or_another_request_and_no_panic() {
    let intact = told_resumption(&entries_of(&log_of(NO_LIMIT, with_deaths)));
    let entry = Entry::Resume(Box::new(intact));
    let raw = postcard::to_extend(&entry, Vec::new()).expect("it is plain data");
    let mut n_refused = 0;
    // The first byte is the variant.
    for place in 1..raw.len() {
        let mut damaged = raw.clone();
        damaged[place] ^= 1 << (place % 8);
        let Ok((entry, _)) = postcard::take_from_bytes::<Entry>(&damaged) else {
            n_refused += 1;
            continue;
        };
        let start = Entry::Start { generation: 2 };
        match replay_of(&forged(&setup(), &[start, entry])) {
            Err(ReplayError::Inconsistent { .. }) => n_refused += 1,
            Err(error) => panic!("byte {place}: {error}"),
            Ok(_) => (),
        }
    }
    assert!(n_refused > 0);
}
