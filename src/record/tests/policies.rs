//! Tests of replays with another scheduling policy or configuration than the recorded one.

use super::*;

/// Last come, first served.
struct Newest;

impl SchedulePolicy for Newest {
    fn name(&self) -> &'static str {
        "newest"
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        waiting.reverse();
    }
}

#[test]
fn another_queue_order_is_a_difference_at_the_first_changed_plan() {
    let log = log_of(NO_LIMIT, busy);
    let make = |setup: &ControlSetup| setup.build_with(Box::new(Newest));
    let replayed = replay(log.as_slice(), &make).expect("it can be replayed");
    let difference = replayed.difference.expect("the order differs");
    assert_eq!(difference.message, "PlanStep");
    assert!(
        difference
            .at
            .field
            .starts_with("PlanStep.admit.candidates["),
        "{difference}"
    );
    assert_eq!(difference.record, replayed.counts.records);
    assert!(difference.step.is_some());
    let entry = &entries_of(&log)[difference.record as usize - 1];
    assert_eq!(entry.message(), "PlanStep");
}

/// The policy `lpm`; if not `is_strict`, with `<=` instead of `<` in its order, so that ties are no longer stable.
struct LongestPrefix {
    is_strict: bool,
}

impl SchedulePolicy for LongestPrefix {
    fn name(&self) -> &'static str {
        "lpm"
    }

    fn probe_need(&self) -> Option<ProbeNeed> {
        Some(ProbeNeed {
            kind: ProbeKind::InBatch,
            long_queue: LongQueue::FallsBack,
        })
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        let rank = |request: &Waiting| {
            if request.matched.is_deprioritised {
                (1, 0)
            } else {
                (0, -(request.matched.tokens as i64))
            }
        };
        // Insertion sort: moves each request forward while it precedes its predecessor.
        for end in 1..waiting.len() {
            let mut place = end;
            while place > 0 {
                let (front, this) = (rank(&waiting[place - 1]), rank(&waiting[place]));
                let moves = if self.is_strict {
                    this < front
                } else {
                    this <= front
                };
                if !moves {
                    break;
                }
                waiting.swap(place - 1, place);
                place -= 1;
            }
        }
    }
}

#[test]
fn an_unstable_lpm_is_a_difference_at_the_first_changed_plan() {
    let disk = Disk::default();
    let setup = setup_with("lpm");
    let sink = LogSink::start(disk.clone(), NO_LIMIT, &Header::new(&setup))
        .expect("memory can be written");
    let mut engine = Engine::with_setup(&setup, Some(sink.recorder(1)));
    for round in 0..40 {
        for number in 0..3 {
            let prompt: Vec<u32> = (0..40)
                .map(|t| (t * (round % 5 + 1) + number) % VOCAB)
                .collect();
            engine.submit(&prompt, 4 + number);
        }
        engine.end_step();
        engine.end_step();
    }
    engine.drain();
    drop((engine, sink));
    let log = disk.0.lock().expect("the writer has ended").clone();
    let run = |is_strict| {
        let make = |setup: &ControlSetup| setup.build_with(Box::new(LongestPrefix { is_strict }));
        let replayed = replay(log.as_slice(), &make).expect("it can be replayed");
        replayed.difference
    };
    assert_eq!(run(true), None, "the copy orders like the original");
    let difference = run(false).expect("ties change their order");
    assert_eq!(difference.message, "PlanStep");
    assert_eq!(difference.after, "PrefixesProbed");
    let field = &difference.at.field;
    assert!(
        field.starts_with("PlanStep.admit.candidates["),
        "{difference}"
    );
    let entry = &entries_of(&log)[difference.record as usize - 1];
    assert_eq!(entry.message(), "PlanStep");
}

#[test]
fn other_settings_are_a_difference_at_the_first_changed_message() {
    let log = log_of(NO_LIMIT, busy);
    let check = |change: &dyn Fn(&mut ControlSetup), message: &str| {
        let make = |setup: &ControlSetup| {
            let mut setup = setup.clone();
            change(&mut setup);
            setup.build()
        };
        let replayed = replay(log.as_slice(), &make).expect("it can be replayed");
        let difference = replayed.difference.expect("the settings differ");
        // If the kinds of message differ, the report names both.
        assert!(difference.message.contains(message), "{difference}");
    };
    check(&|setup| setup.limits.chunk_tokens = Some(20), "StepPlanned");
    check(&|setup| setup.limits.total_pages -= 1, "PlanStep");
    check(&|setup| setup.limits.prefix_wait = false, "PlanStep");
    check(
        &|setup| setup.limits.schedule_conservativeness = 1.0,
        "StepPlanned",
    );
    check(
        &|setup| setup.limits.queue.eviction_policy = None,
        "StepPlanned",
    );
    check(
        &|setup| setup.limits.queue.eviction_policy = EvictionPolicy::from_name("mru").ok(),
        "StepPlanned",
    );
    check(
        &|setup| setup.limits.eos_token_ids = Arc::from([5]),
        "PlanStep",
    );
}

struct Fragile;

impl SchedulePolicy for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn order(&mut self, _: &mut [Waiting]) {
        panic!("it broke");
    }
}

#[test]
fn states_that_panic_are_reported_with_the_record() {
    let log = log_of(NO_LIMIT, busy);
    let make = |setup: &ControlSetup| setup.build_with(Box::new(Fragile));
    let error = replay(log.as_slice(), &make).expect_err("it panics");
    let text = error.to_string();
    assert!(
        text.contains("record 3, after Submit") && text.contains("it broke"),
        "{text}"
    );
}
