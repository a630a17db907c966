mod replicas;

use super::quarantine::Quarantine;
use super::*;
use crate::scheduler::news::FinishReason;
use crate::scheduler::submission::{CancelFlag, RequestTimeouts};
use crate::step::PIPELINE_DEPTH;
use crate::supervision::blame::Signature;

const UNIT: UnitId = UnitId::new(0);

fn at(generation: u64) -> Incarnation {
    Incarnation {
        unit: UNIT,
        generation,
    }
}

fn enter(docket: &mut Docket, unit: UnitId) -> IntakeId {
    enter_limited(docket, unit, RequestTimeouts::default())
}

fn enter_limited(docket: &mut Docket, unit: UnitId, timeouts: RequestTimeouts) -> IntakeId {
    let intake = docket.next_intake();
    let request = Submission {
        intake,
        logprobs: None,
        prompt: [1, 2, 3].into(),
        rid: RequestId::new(format!("r{intake}")),
        namespace: Default::default(),
        sampling: Default::default(),
        opening: Default::default(),
        anchors: Default::default(),
        grammar: None,
        vectors: None,
        images: None,
        bypasses_cache: false,
        pooling: None,
        priority: None,
        cancel: CancelFlag::default(),
        submitted_s: 0.0,
        timeouts,
        draft_texts: Default::default(),
    };
    docket.enter(request, unit, 1.0);
    intake
}

fn news(intake: IntakeId, tokens: &[u32]) -> RequestTokens {
    RequestTokens {
        intake,
        tokens: tokens.into(),
        logprobs: None,
        cached_tokens: 2,
        loaded_tokens: 0,
        num_retractions: 1,
        drafts: Default::default(),
        end: None,
    }
}

fn last(intake: IntakeId, token: u32) -> RequestTokens {
    let end = RequestEnd::Finished(FinishReason::Abort);
    RequestTokens {
        end: Some(Box::new(end)),
        ..news(intake, &[token])
    }
}

/// The posts in short: `s1` submits request 1, `r1:5` resumes it after five tokens, `w1:5` withdraws it.
fn shown(posts: &[Post]) -> String {
    let shown = posts.iter().map(|post| match post {
        Post::Submit(request) => format!("s{}", request.intake),
        Post::Withdraw { rid, kept } => format!("w{}:{kept}", &rid.as_str()[1..]),
        Post::Resume(resume) => {
            let requests = resume.requests.iter();
            let requests = requests.map(|resumed| {
                let (intake, told) = (resumed.submission.intake, resumed.told.len());
                format!("r{intake}:{told}")
            });
            format!("[{}]", requests.collect::<Vec<_>>().join(" "))
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// A docket with three posted requests, of which the first was told two tokens.
fn running() -> Docket {
    let mut docket = Docket::default();
    docket.open(at(1), &Suspicion::Nothing);
    for _ in 0..3 {
        enter(&mut docket, UNIT);
    }
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[] s0 s1 s2");
    assert!(docket.note(at(1), &[news(IntakeId::new(0), &[7, 8])]));
    docket
}

fn cause(place: &str) -> Suspicion {
    Suspicion::All(Signature {
        actor: "scheduler",
        place: place.into(),
    })
}

#[test]
fn requests_wait_for_their_unit_and_are_posted_once() {
    let mut docket = Docket::default();
    enter(&mut docket, UNIT);
    assert!(docket.posts(UNIT, 1.0).is_empty());
    docket.open(at(1), &Suspicion::Nothing);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[] s0");
    assert!(docket.posts(UNIT, 1.0).is_empty());
}

#[test]
fn a_new_generation_gets_all_requests_with_what_was_told_and_no_old_message_counts() {
    let mut docket = running();
    docket.ended(IntakeId::new(1));
    docket.admitted(IntakeId::new(0), 2.0);
    assert_eq!(docket.open(at(2), &Suspicion::Nothing), None);
    assert!(!docket.note(at(1), &[news(IntakeId::new(0), &[9])]));
    assert_eq!(docket.stale_messages(), 1);
    let posts = docket.posts(UNIT, 5.0);
    assert_eq!(shown(&posts), "[r0:2 r2:0]");
    let Post::Resume(resume) = &posts[0] else {
        panic!("{posts:?}");
    };
    assert_eq!((resume.floor.step, resume.floor.sequences), (1 << 40, 3));
    let first = &resume.requests[0];
    assert_eq!(*first.told, [7, 8]);
    let counts = (first.cached_tokens, first.retractions, first.input_logprobs);
    assert_eq!(counts, (Some(2), 1, 0));
    assert_eq!(first.resumptions, 1);
    assert_eq!((first.age_s, first.running_s), (4.0, Some(3.0)));
    assert!(first.has_run() && !resume.requests[1].has_run());
}

#[test]
fn an_end_that_was_noted_is_due_and_the_request_is_not_posted_again() {
    let mut docket = running();
    assert!(docket.note(
        at(1),
        &[last(IntakeId::new(0), 9), news(IntakeId::new(0), &[1])]
    ));
    docket.open(at(2), &Suspicion::Nothing);
    assert_eq!(docket.ends_due(), [IntakeId::new(0)]);
    let entry = docket.get(IntakeId::new(0)).expect("it is due");
    assert_eq!(entry.told(), [7, 8, 9]);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r1:0 r2:0]");
    docket.ended(IntakeId::new(0));
    assert_eq!(docket.len(), 2);
}

/// The three requests after two deaths by one cause, between which none was told a token.
fn dead_twice() -> Docket {
    let mut docket = running();
    assert_eq!(docket.open(at(2), &cause("a")), None);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2 r1:0 r2:0]");
    assert_eq!(docket.open(at(3), &cause("a")), None);
    docket
}

#[test]
fn requests_that_made_progress_between_two_deaths_are_no_suspects() {
    let mut docket = running();
    docket.open(at(2), &cause("a"));
    docket.posts(UNIT, 1.0);
    for intake in [0, 2] {
        assert!(docket.note(at(2), &[news(IntakeId::new(intake), &[9; 3])]));
    }
    docket.open(at(3), &cause("a"));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r1:0]");
    let mut docket = running();
    docket.open(at(2), &cause("a"));
    docket.posts(UNIT, 1.0);
    docket.open(at(3), &cause("b"));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2 r1:0 r2:0]");
}

#[test]
fn suspects_are_posted_one_by_one_and_others_wait_until_all_are_cleared() {
    let mut docket = dead_twice();
    let new = enter(&mut docket, UNIT);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2]");
    assert!(docket.note(at(3), &[news(IntakeId::new(0), &[9])]));
    assert!(docket.posts(UNIT, 1.0).is_empty());
    assert!(docket.note(at(3), &[news(IntakeId::new(0), &[10])]));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "w0:4 [r1:0]");
    // A token that was in flight when the request was withdrawn.
    assert!(docket.note(at(3), &[news(IntakeId::new(0), &[11])]));
    assert!(docket.note(at(3), &[last(IntakeId::new(1), 1)]));
    docket.ended(IntakeId::new(1));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r2:0]");
    for token in [1, 2] {
        assert!(docket.note(at(3), &[news(IntakeId::new(2), &[token])]));
    }
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), format!("[r0:5] s{new}"));
}

#[test]
fn a_withdrawn_request_waits_for_the_result_of_a_later_post() {
    let mut docket = dead_twice();
    docket.ended(IntakeId::new(2));
    docket.posts(UNIT, 1.0);
    for token in [9, 10] {
        assert!(docket.note(at(3), &[news(IntakeId::new(0), &[token])]));
    }
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "w0:4 [r1:0]");
    // The client of the suspect has gone: the owner cancels it.
    docket.ended(IntakeId::new(1));
    assert!(docket.posts(UNIT, 1.0).is_empty());
    assert!(docket.note(at(3), &[news(IntakeId::new(0), &[11])]));
    assert!(docket.posts(UNIT, 1.0).is_empty());
    assert!(docket.note(at(3), &[last(IntakeId::new(1), 1)]));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:5]");
}

#[test]
fn a_request_that_dies_alone_twice_by_the_cause_of_two_deaths_fails_and_the_others_continue() {
    let mut docket = dead_twice();
    docket.posts(UNIT, 1.0);
    assert_eq!(docket.open(at(4), &cause("b")), None);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2]");
    assert_eq!(docket.open(at(5), &cause("a")), None);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2]");
    assert_eq!(docket.open(at(6), &cause("a")), Some(IntakeId::new(0)));
    assert_eq!(docket.ends_due(), [IntakeId::new(0)]);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r1:0 r2:0]");
}

fn named(intake: u64, place: &str) -> Suspicion {
    let cause = Signature {
        actor: "scheduler",
        place: place.into(),
    };
    Suspicion::One(IntakeId::new(intake), cause)
}

#[test]
fn a_request_that_two_deaths_by_one_cause_name_fails_while_the_others_make_progress() {
    let mut docket = running();
    assert_eq!(docket.open(at(2), &named(1, "a")), None);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2 r1:0 r2:0]");
    assert!(docket.note(at(2), &[news(IntakeId::new(0), &[9; 5])]));
    assert_eq!(docket.open(at(3), &named(1, "a")), Some(IntakeId::new(1)));
    assert_eq!(docket.ends_due(), [IntakeId::new(1)]);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:7 r2:0]");
}

#[test]
fn a_request_that_deaths_by_different_causes_name_or_that_made_progress_between_two_continues() {
    let mut docket = running();
    for (generation, place) in [(2, "a"), (3, "b"), (4, "c")] {
        assert_eq!(docket.open(at(generation), &named(1, place)), None);
        docket.posts(UNIT, 1.0);
    }
    assert!(docket.note(at(4), &[news(IntakeId::new(1), &[9; 3])]));
    for (generation, intake) in [(5, 1), (6, 2)] {
        assert_eq!(docket.open(at(generation), &named(intake, "a")), None);
        docket.posts(UNIT, 1.0);
    }
    assert_eq!(docket.open(at(7), &named(1, "a")), Some(IntakeId::new(1)));
}

#[test]
fn another_unit_takes_over_the_requests_of_a_retired_one() {
    let mut docket = running();
    let other = UnitId::new(1);
    let there = Incarnation {
        unit: other,
        generation: 1,
    };
    docket.open(there, &Suspicion::Nothing);
    enter(&mut docket, other);
    docket.posts(other, 1.0);
    docket.hand_over(UNIT, other);
    assert!(!docket.note(at(1), &[news(IntakeId::new(0), &[9])]));
    assert_eq!(shown(&docket.posts(other, 1.0)), "[r0:2 r1:0 r2:0]");
    assert!(docket.note(there, &[news(IntakeId::new(0), &[9])]));
    assert_eq!(
        docket.get(IntakeId::new(0)).map(|entry| entry.told().len()),
        Some(3)
    );
}

#[test]
fn held_requests_are_listed_before_posted_ones_and_ended_ones_are_not() {
    let mut docket = running();
    docket.admitted(IntakeId::new(0), 3.0);
    docket.open(at(2), &cause("a"));
    docket.posts(UNIT, 4.0);
    docket.open(at(3), &cause("a"));
    // The trial of the first suspect: the others are held.
    docket.posts(UNIT, 4.0);
    let new = enter(&mut docket, UNIT);
    assert!(docket.note(at(3), &[last(IntakeId::new(1), 1)]));
    let (listed, n_requests) = docket.live_requests(6.0, 2);
    assert_eq!(n_requests, 3);
    let shown = listed.iter().map(|row| (row.intake, row.state.name()));
    let shown: Vec<(IntakeId, &str)> = shown.collect();
    assert_eq!(shown, [(IntakeId::new(2), "held"), (new, "held")]);
    let posted = docket.live_request(IntakeId::new(0), 6.0);
    let posted = posted.expect("it has not ended");
    assert_eq!((posted.state.name(), posted.output), ("waiting", 2));
    assert_eq!((posted.queued_s, posted.running_s), (2.0, 3.0));
    assert_eq!(posted.resumptions, 2);
    assert_eq!(docket.live_request(IntakeId::new(1), 6.0), None);
}

const LIMITS: RequestTimeouts = RequestTimeouts {
    waiting_s: Some(2.0),
    running_s: Some(4.0),
};

#[test]
fn a_request_that_is_held_during_trials_waits_and_runs_no_longer_than_it_may() {
    let mut docket = dead_twice();
    let waits = enter_limited(&mut docket, UNIT, LIMITS);
    let runs = enter_limited(&mut docket, UNIT, LIMITS);
    docket.admitted(runs, 2.0);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2]");
    assert!(docket.overdue(2.9).is_empty());
    let late = (waits, RequestError::waiting_timeout(2.0));
    assert_eq!(docket.overdue(3.0), [late]);
    docket.ended(waits);
    assert!(docket.overdue(5.9).is_empty());
    let late = (runs, RequestError::running_timeout(4.0));
    assert_eq!(docket.overdue(6.0), [late]);
    docket.ended(runs);
    for intake in [0, 1, 2] {
        docket.ended(IntakeId::new(intake));
    }
    assert!(docket.posts(UNIT, 6.0).is_empty());
}

#[test]
fn a_posted_request_ends_later_than_its_scheduler_would_end_it() {
    let mut docket = Docket::default();
    docket.open(at(1), &Suspicion::Nothing);
    let posted = enter_limited(&mut docket, UNIT, LIMITS);
    docket.posts(UNIT, 1.0);
    assert!(docket.overdue(3.9).is_empty());
    let late = (posted, RequestError::waiting_timeout(2.0));
    assert_eq!(docket.overdue(4.0), [late]);
    assert!(docket.note(at(1), &[last(posted, 1)]));
    assert!(docket.overdue(9.0).is_empty());
}

fn convicted(prompt: &[u32], seed: u64) -> Submission {
    let sampling = crate::sampling::SamplingParams {
        sampling_seed: Some(seed),
        ..Default::default()
    };
    Submission {
        intake: IntakeId::new(0),
        logprobs: None,
        prompt: prompt.into(),
        rid: RequestId::new("r"),
        namespace: Default::default(),
        sampling: sampling.into(),
        opening: Default::default(),
        anchors: Default::default(),
        grammar: None,
        vectors: None,
        images: None,
        bypasses_cache: false,
        pooling: None,
        priority: None,
        cancel: CancelFlag::default(),
        submitted_s: 0.0,
        timeouts: RequestTimeouts::default(),
        draft_texts: Default::default(),
    }
}

#[test]
fn a_convicted_request_is_refused_with_any_seed_for_ten_minutes() {
    let mut quarantine = Quarantine::default();
    quarantine.convict(&convicted(&[1, 2], 5), 10.0);
    assert!(quarantine.refuses(&convicted(&[1, 2], 6), 609.0));
    assert!(!quarantine.refuses(&convicted(&[1, 3], 5), 609.0));
    assert!(!quarantine.refuses(&convicted(&[1, 2], 5), 610.0));
}

#[test]
fn a_request_is_posted_once_it_has_a_unit() {
    let mut docket = Docket::default();
    let (first, second) = (UNIT, UnitId::new(1));
    for unit in [first, second] {
        let at = Incarnation {
            unit,
            generation: 1,
        };
        assert_eq!(docket.open(at, &Suspicion::Nothing), None);
    }
    let requests = [(); 3].map(|()| enter(&mut docket, routing::UNROUTED));
    assert_eq!(docket.unrouted(), requests);
    assert_eq!(shown(&docket.posts(first, 1.0)), "[]");
    assert!(docket.route(requests[1], second));
    assert!(!docket.route(requests[1], first), "it has a unit");
    docket.ended(requests[2]);
    assert!(!docket.route(requests[2], first), "it has ended");
    assert_eq!(docket.unrouted(), requests[..1]);
    assert_eq!(shown(&docket.posts(second, 1.0)), "[] s1");
    assert_eq!(shown(&docket.posts(first, 1.0)), "");
    assert_eq!(docket.routed(), [(requests[1], second, false)]);
}

#[test]
fn requests_of_a_dead_unit_move_except_those_that_may_have_caused_the_death() {
    let mut docket = Docket::default();
    let units = [UNIT, UnitId::new(1)];
    let open = |docket: &mut Docket, unit: usize, generation, suspicion: &Suspicion| {
        let at = Incarnation {
            unit: units[unit],
            generation,
        };
        assert_eq!(docket.open(at, suspicion), None);
        shown(&docket.posts(units[unit], 1.0))
    };
    let nothing = Suspicion::Nothing;
    let requests = [(); 3].map(|()| enter(&mut docket, UNIT));
    assert_eq!(open(&mut docket, 0, 1, &nothing), "[] s0 s1 s2");
    assert_eq!(open(&mut docket, 1, 1, &nothing), "[]");
    let batch = requests.map(|intake| news(intake, &[7]));
    let first = at(1);
    assert!(docket.note(first, &batch));
    // Any of them may have caused the first death: they continue in the other unit at once.
    let cause = Signature {
        actor: "executor_thread",
        place: "here".into(),
    };
    let all = Suspicion::All(cause.clone());
    assert_eq!(docket.move_away(units[0], &all), requests);
    for intake in requests {
        assert!(docket.route(intake, units[1]));
    }
    assert_eq!(shown(&docket.posts(units[1], 1.0)), "[r0:1 r1:1 r2:1]");
    // Late results of the dead unit are not told, since the other one computes them again.
    assert!(docket.note(first, &[news(requests[0], &[8])]));
    assert_eq!(
        docket.get(requests[0]).map(|entry| entry.told().len()),
        Some(1)
    );
    assert_eq!(open(&mut docket, 0, 2, &all), "[]");
    // The second death by this cause: those without progress stay, and are tried alone.
    let second = Incarnation {
        unit: units[1],
        generation: 1,
    };
    let progress = [7; PIPELINE_DEPTH + 1];
    assert!(docket.note(second, &[news(requests[2], &progress)]));
    assert_eq!(docket.move_away(units[1], &all), requests[2..]);
    assert_eq!(open(&mut docket, 1, 2, &all), "[r0:1]");
    assert_eq!(docket.unrouted(), requests[2..]);
    // A named request stays alone.
    assert!(docket.route(requests[2], units[0]));
    let _ = docket.posts(units[0], 1.0);
    let named = Suspicion::One(requests[2], cause);
    assert!(docket.move_away(units[0], &named).is_empty());
}
