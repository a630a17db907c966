//! Logs of a small engine without actors, whole, cut, damaged and made up.

mod engine;

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use crate::error::StepError;
use crate::executor::fake::{FakeExecutor, FakeOptions};
use crate::executor::{Executor, StepPlan};
use crate::ids::{IntakeId, RequestId, StepId};
use crate::record::entry::{Entry, FlagOf, SubmitEntry};
use crate::record::file::{self, Ending, Header, LogReader, Record};
use crate::record::replay::{ReplayError, Replayed, replay};
use crate::record::scheduler::RecordedScheduler;
use crate::record::sink::{LogSink, Recorder};
use crate::request::{CancelFlag, RequestTimeouts};
use crate::state::control::{ControlSetup, ControlStates};
use crate::state::eviction::EvictionPolicy;
use crate::state::namespace::Namespace;
use crate::state::pages::{PageSize, PoolLedger};
use crate::state::policy::{Crowd, ProbeKind, ProbeNeed, SchedulePolicy, Waiting};
use crate::state::pools::Pools;
use crate::state::prefix_cache::PrefixCache;
use crate::state::probe::run_probe;
use crate::state::sampling::SamplingParams;
use crate::state::scheduler::{BatchRules, Next, QueueRules, Scheduler, SchedulerLimits};
use crate::state::sequence::Submission;
use crate::state::transaction::run_plan;

use engine::Engine;

const VOCAB: u32 = 100;
const NO_LIMIT: u64 = u64::MAX;

/// A file in memory. Writes wait while somebody holds it.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<Vec<u8>>>);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn setup() -> ControlSetup {
    setup_with("fcfs")
}

fn setup_with(policy: &str) -> ControlSetup {
    ControlSetup {
        limits: SchedulerLimits {
            page_size: PageSize::ONE,
            total_pages: 160,
            total_rows: 6,
            max_prefill_tokens: 128,
            chunk_tokens: Some(24),
            prefix_wait: true,
            schedule_conservativeness: 0.05,
            max_pins: 4,
            queue: QueueRules::default(),
            rules: BatchRules::default(),
            eos_token_ids: Arc::from([0]),
        },
        schedule_policy: policy.to_owned(),
        diagnoses_misses: false,
    }
}

/// The log of a script.
fn log_of(max_bytes: u64, script: impl FnOnce(&Arc<LogSink>)) -> Vec<u8> {
    let disk = Disk::default();
    let sink = LogSink::start(disk.clone(), max_bytes, &setup()).expect("memory can be written");
    script(&sink);
    drop(sink);
    let bytes = disk.0.lock().expect("the writer has ended");
    bytes.clone()
}

/// Requests with shared prefixes in a pool that is too small for them, and everything else that may happen.
fn busy(sink: &Arc<LogSink>) {
    let engine = submit_rounds(sink, 120);
    let stats = engine.scheduler.stats();
    assert!(stats.retractions > 0 && stats.evicted_tokens > 0 && stats.cached_tokens > 0);
}

/// The first rounds of it: a log that can be replayed a thousand times.
fn short(sink: &Arc<LogSink>) {
    drop(submit_rounds(sink, 8));
}

fn submit_rounds(sink: &Arc<LogSink>, n_rounds: u32) -> Engine {
    let mut engine = Engine::new(sink, 1);
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..n_rounds {
        let shared = (0..30).map(|token| token % VOCAB + round % 3);
        let own = (0..random.u32(1..30)).map(|token| token * 7 % VOCAB);
        let prompt: Vec<u32> = shared.chain(own).collect();
        let (rid, flag) = engine.submit(&prompt, random.u32(1..40));
        match round % 11 {
            1 => engine.scheduler.cancel(&rid, Some(&flag)),
            2 => engine.scheduler.cancel(&rid, Some(&CancelFlag::default())),
            3 => engine.scheduler.stop_found(&rid, 1),
            // The next plan sees it.
            4 => flag.raise(),
            5 => engine.submit_as(rid, &prompt, 2, &flag),
            6 => {
                flag.raise();
                engine.n_submitted += 1;
                engine.submit_as(RequestId::new("raised"), &prompt, 2, &flag);
            }
            7 => drop(
                engine
                    .scheduler
                    .pin(Namespace::default(), prompt.into(), 50),
            ),
            8 => drop(engine.scheduler.unpin(1)),
            9 if round > 100 => engine.scheduler.cancel_all(),
            _ => (),
        }
        match round % 25 {
            _ if round < 50 => (),
            10 => drop(engine.scheduler.set_policy("lpm")),
            14 => drop(engine.scheduler.set_policy("none such")),
            15 => drop(engine.scheduler.set_eviction_policy("lfu")),
            20 => drop(engine.scheduler.set_policy("fcfs")),
            _ => (),
        }
        engine.scheduler.expire_pins(u64::from(round));
        engine.scheduler.expire_requests(f64::from(round));
        engine.drive();
        if round == 60 {
            let step = engine.steps.pop_front().expect("it is busy").step;
            let lost = Err(StepError::Lost("as asked".to_owned()));
            engine.scheduler.step_done(step, lost);
            engine.drive();
        }
        for _ in 0..random.u32(0..7) {
            engine.end_step();
        }
    }
    engine.drain();
    engine
}

fn replay_of(log: &[u8]) -> Result<Replayed, ReplayError> {
    replay(log, &ControlSetup::build)
}

fn entries_of(log: &[u8]) -> Vec<Entry> {
    let mut reader = LogReader::open(log).expect("it is a log");
    let mut entries = Vec::new();
    while let Some(record) = reader.next().expect("it is whole") {
        match record {
            Record::Entry(entry) => entries.push(entry),
            Record::Gap => panic!("it has no gap"),
        }
    }
    entries
}

/// A log of these entries, with everything in order but them.
fn made_up(setup: &ControlSetup, entries: &[Entry]) -> Vec<u8> {
    let mut log = file::opening(&Header::new(setup)).expect("it is plain data");
    let raw = entries.iter().fold(Vec::new(), |raw, entry| {
        postcard::to_extend(entry, raw).expect("it is plain data")
    });
    log.extend(file::block(&raw).expect("memory can be written"));
    log.extend(file::end(Ending::Closed, 0));
    log
}

#[test]
fn everything_that_enters_a_busy_scheduler_is_replayed_to_the_same_plans() {
    let log = log_of(NO_LIMIT, busy);
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    assert_eq!((replayed.ending, replayed.has_gap), (Ending::Closed, false));
    assert!(replayed.counts.steps > 100 && replayed.counts.requests > 120);
    let entries = entries_of(&log);
    let messages: BTreeSet<&str> = entries.iter().map(Entry::message).collect();
    for message in [
        "Submit",
        "CancelRequest",
        "CancelAll",
        "StopFound",
        "StepDone",
        "PinPrefix",
        "UnpinPrefix",
        "expiry of pins",
        "look for requests whose time is over",
        "SetPolicy",
        "ProbePrefixes",
        "PrefixesProbed",
        "raised flags",
        "PlanStep",
        "ReservePages",
        "StepPlanned",
        "RunStep",
        "TokensReady",
    ] {
        assert!(messages.contains(message), "no {message} in {messages:?}");
    }
}

#[test]
fn a_cancel_is_told_by_whose_flag_it_brings() {
    let flags: BTreeSet<u8> = entries_of(&log_of(NO_LIMIT, busy))
        .iter()
        .filter_map(|entry| match entry {
            Entry::Cancel { flag, .. } => Some(*flag as u8),
            _ => None,
        })
        .collect();
    let expected = BTreeSet::from([FlagOf::Holder as u8, FlagOf::Another as u8]);
    assert_eq!(flags, expected);
}

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

fn with_policy(
    setup: &ControlSetup,
    policy: Box<dyn SchedulePolicy>,
) -> Result<ControlStates, String> {
    let mut states = setup.build()?;
    states.scheduler = Scheduler::new(setup.limits.clone(), policy, states.ledger.clone());
    Ok(states)
}

#[test]
fn another_order_of_the_queue_is_named_at_the_plan_that_it_changes() {
    let log = log_of(NO_LIMIT, busy);
    let make = |setup: &ControlSetup| with_policy(setup, Box::new(Newest));
    let replayed = replay(log.as_slice(), &make).expect("it can be replayed");
    let difference = replayed.difference.expect("the order is another");
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

/// lpm as it is, or with the one comparison of its order changed from < to <=: equals no longer keep their order.
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
            crowd: Crowd::FallsBack,
        })
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        let rank = |request: &Waiting| match request.matched.is_deprioritised {
            true => (1, 0),
            false => (0, -(request.matched.tokens as i64)),
        };
        // An insertion sort: whoever is before the one in front of it moves ahead of it.
        for end in 1..waiting.len() {
            let mut place = end;
            while place > 0 {
                let (front, this) = (rank(&waiting[place - 1]), rank(&waiting[place]));
                let moves = match self.is_strict {
                    true => this < front,
                    false => this <= front,
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
fn lpm_with_another_comparison_is_named_at_the_message_where_it_diverges() {
    let disk = Disk::default();
    let setup = setup_with("lpm");
    let sink = LogSink::start(disk.clone(), NO_LIMIT, &setup).expect("memory can be written");
    let mut engine = Engine::with(&setup, Some(sink.recorder(1)));
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
        let make = |setup: &ControlSetup| with_policy(setup, Box::new(LongestPrefix { is_strict }));
        let replayed = replay(log.as_slice(), &make).expect("it can be replayed");
        replayed.difference
    };
    assert_eq!(run(true), None, "the copy orders as the original does");
    let difference = run(false).expect("equals change their places");
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
fn other_states_are_told_from_the_recorded_ones_wherever_they_decide() {
    let log = log_of(NO_LIMIT, busy);
    let check = |change: &dyn Fn(&mut ControlSetup), message: &str| {
        let make = |setup: &ControlSetup| {
            let mut setup = setup.clone();
            change(&mut setup);
            setup.build()
        };
        let replayed = replay(log.as_slice(), &make).expect("it can be replayed");
        let difference = replayed.difference.expect("something is another");
        // Where another message is sent, both are named.
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

#[test]
fn a_log_that_is_cut_off_is_replayed_up_to_its_last_whole_block() {
    let log = log_of(NO_LIMIT, short);
    let whole = replay_of(&log).expect("it can be replayed").counts.records;
    let mut last = 0;
    for cut in (0..log.len()).step_by(11).chain([log.len() - 1]) {
        match replay_of(&log[..cut]) {
            Err(error) => assert!(matches!(error, ReplayError::Log(_)) && last == 0, "{error}"),
            Ok(replayed) => {
                assert_eq!(
                    (replayed.difference, replayed.ending),
                    (None, Ending::CutOff)
                );
                assert!(replayed.counts.records >= last);
                last = replayed.counts.records;
            }
        }
    }
    assert_eq!(last, whole);
}

#[test]
fn a_damaged_log_is_an_error_and_no_difference() {
    let log = log_of(NO_LIMIT, short);
    for place in (0..log.len()).step_by(13) {
        let mut damaged = log.clone();
        damaged[place] ^= 1 << (place % 8);
        match replay_of(&damaged) {
            Err(ReplayError::Log(_)) => (),
            Err(error) => panic!("byte {place}: {error}"),
            // A length that points behind the end.
            Ok(replayed) => assert_eq!(replayed.ending, Ending::CutOff, "byte {place}"),
        }
    }
}

#[test]
fn a_made_up_log_is_refused_with_its_record() {
    let start = Entry::Start { generation: 1 };
    let outcomes = entries_of(&log_of(NO_LIMIT, busy));
    let first = |message: &str| {
        let found = outcomes.iter().find(|entry| entry.message() == message);
        found.expect("a busy engine has it").clone()
    };
    let submit = |change: &dyn Fn(&mut SubmitEntry)| match first("Submit") {
        Entry::Submit(mut request) => {
            change(&mut request);
            Entry::Submit(request)
        }
        other => panic!("{other:?}"),
    };
    let check = |entries: &[Entry], parts: &[&str]| {
        let error = replay_of(&made_up(&setup(), entries)).expect_err("it is made up");
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    check(&[Entry::Next], &["record 1", "no unit"]);
    check(
        &[start.clone(), first("StepPlanned")],
        &["record 2", "not open"],
    );
    check(
        &[start.clone(), first("PlanStep")],
        &["record 2", "no call"],
    );
    check(
        &[start.clone(), Entry::Next, Entry::CancelAll],
        &["record 3", "CancelAll"],
    );
    let empty = submit(&|request| request.prompt = Arc::from([]));
    check(&[start.clone(), empty], &["record 2", "empty prompt"]);
    let odd = submit(&|request| request.sampling_json = "{\"n\": []}".to_owned());
    check(&[start, odd], &["record 2", "sampling parameters"]);
}

#[test]
fn a_log_that_asks_for_too_much_is_refused() {
    let mut large = setup();
    large.limits.total_pages = usize::MAX;
    let error = replay_of(&made_up(&large, &[])).expect_err("no pool is so large");
    assert!(error.to_string().contains("total_pages"), "{error}");
    let mut bomb = file::opening(&Header::new(&setup())).expect("it is plain data");
    let n_header = bomb.len();
    bomb.extend(file::block(&vec![0; file::MAX_BLOCK_BYTES + 1]).expect("zeros pack well"));
    let error = replay_of(&bomb).expect_err("the block is too large");
    let text = error.to_string();
    assert!(
        text.contains(&format!("byte {n_header}")) && text.contains("limit"),
        "{text}"
    );
    let text = replay_of(b"SOUFLOG\x02 and more")
        .expect_err("another format")
        .to_string();
    assert!(text.contains("no message log"), "{text}");
}

/// Panics when it is asked.
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
    let make = |setup: &ControlSetup| with_policy(setup, Box::new(Fragile));
    let error = replay(log.as_slice(), &make).expect_err("it panics");
    let text = error.to_string();
    assert!(
        text.contains("record 3, after Submit") && text.contains("it broke"),
        "{text}"
    );
}

#[test]
fn a_call_behind_which_the_scheduler_died_is_the_difference() {
    let start = |generation| Entry::Start { generation };
    let log = made_up(
        &setup(),
        &[start(1), Entry::CancelAll, Entry::Next, start(2)],
    );
    let difference = replay_of(&log).expect("it can be replayed").difference;
    let difference = difference.expect("this state does not die");
    assert_eq!((difference.record, difference.after), (4, "CancelAll"));
    assert!(
        difference
            .to_string()
            .contains("was dead behind this call, is alive")
    );
}

#[test]
fn units_are_replayed_one_after_the_other() {
    let log = log_of(NO_LIMIT, |sink| {
        for generation in [1, 2] {
            let mut engine = Engine::new(sink, generation);
            engine.submit(&[1, 2, 3], 5);
            engine.end_step();
        }
    });
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!((replayed.counts.units, replayed.difference), (2, None));
}

#[test]
fn a_log_ends_at_its_size_with_a_mark() {
    let limit = 4096;
    let log = log_of(limit, |sink| {
        busy(sink);
        assert_eq!(sink.dropped(), 0);
    });
    assert!(log.len() as u64 <= limit, "{}", log.len());
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(
        (replayed.difference, replayed.ending),
        (None, Ending::SizeLimit)
    );
    assert!(!replayed.has_gap && replayed.counts.records > 10);
}

#[test]
fn what_a_slow_disk_does_not_take_is_dropped_counted_and_marked() {
    let disk = Disk::default();
    let sink = LogSink::start(disk.clone(), NO_LIMIT, &setup()).expect("memory can be written");
    let mut n_dropped = 0;
    {
        let held = disk.0.lock().expect("nobody panics with it");
        let mut recorder = sink.recorder(1);
        let tokens: Arc<[u32]> = (0..1 << 16).collect();
        while sink.dropped() < 5 {
            recorder.push(&Entry::Pin {
                namespace: (&Namespace::default()).into(),
                tokens: tokens.clone(),
                expires_s: 1,
            });
            n_dropped = sink.dropped();
        }
        drop(held);
    }
    let mut second = Engine::new(&sink, 2);
    second.submit(&[1, 2, 3], 5);
    drop((second, sink));
    let log = disk.0.lock().expect("the writer has ended").clone();
    let replayed = replay_of(&log).expect("it can be replayed");
    assert!(replayed.has_gap);
    assert_eq!((replayed.n_dropped, replayed.difference), (n_dropped, None));
    assert_eq!(replayed.counts.units, 2);
    let steps = StepId::new(replayed.counts.steps);
    assert!(steps > StepId::new(0), "the second unit is replayed");
}
