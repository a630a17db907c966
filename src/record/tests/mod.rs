//! Tests that complete message logs are replayed without a difference, and helpers of the other tests.

mod damage;
mod deaths;
mod drafts;
mod engine;
mod images;
mod limits;
mod pace;
mod policies;
mod resume;
mod store;

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use crate::digest::NextDigest;
use crate::entry::{Entry, FlagOf, SubmitEntry};
use crate::file::{self, Header, LogEnd, LogReader, Record};
use crate::replay::{ReplayError, Replayed, replay};
use crate::scheduler::RecordedScheduler;
use crate::sink::{LogSink, Recorder};
use souffleur_base::error::StepError;
use souffleur_base::ids::{IntakeId, RequestId, StepId};
use souffleur_executor::Executor;
use souffleur_executor::fake::{FakeExecutor, FakeOptions};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::plan::probe::ProbeKind;
use souffleur_state::pool::pages::PageSize;
use souffleur_state::pool::state_pool::StateLimits;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::policy::{LongQueue, ProbeNeed, SchedulePolicy, Waiting};
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::StepPlan;

use engine::Engine;

const VOCAB: u32 = 100;
const NO_LIMIT: u64 = u64::MAX;

/// A file in memory. Writes block while the mutex is held.
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
            states: None,
            windows: None,
            tier: None,
            vision: None,
        },
        schedule_policy: policy.to_owned(),
        diagnoses_misses: false,
    }
}

fn log_of(max_bytes: u64, script: impl FnOnce(&Arc<LogSink>)) -> Vec<u8> {
    log_with(&setup(), max_bytes, script)
}

fn log_with(setup: &ControlSetup, max_bytes: u64, script: impl FnOnce(&Arc<LogSink>)) -> Vec<u8> {
    let disk = Disk::default();
    let sink = LogSink::start(disk.clone(), max_bytes, &Header::new(setup))
        .expect("memory can be written");
    script(&sink);
    drop(sink);
    let bytes = disk.0.lock().expect("the writer has ended");
    bytes.clone()
}

/// Submits requests with shared prefixes to a pool that is too small for them, among events of every other kind.
fn busy(sink: &Arc<LogSink>) {
    let engine = submit_rounds(sink, 120);
    let stats = engine.states.scheduler.stats();
    assert!(stats.retractions > 0 && stats.evicted_tokens > 0 && stats.cached_tokens > 0);
}

/// The first rounds of [`busy`], whose log is small enough for a thousand replays.
fn short(sink: &Arc<LogSink>) {
    drop(submit_rounds(sink, 8));
}

fn submit_rounds(sink: &Arc<LogSink>, n_rounds: u32) -> Engine {
    submit_rounds_to(Engine::new(sink, 1), n_rounds)
}

fn submit_rounds_to(mut engine: Engine, n_rounds: u32) -> Engine {
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..n_rounds {
        let shared = (0..30).map(|token| token % VOCAB + round % 3);
        let own = (0..random.u32(1..30)).map(|token| token * 7 % VOCAB);
        let prompt: Vec<u32> = shared.chain(own).collect();
        let (rid, flag) = engine.submit(&prompt, random.u32(1..40));
        match round % 11 {
            1 => engine.states.scheduler.cancel(&rid, Some(&flag)),
            2 => engine
                .states
                .scheduler
                .cancel(&rid, Some(&CancelFlag::default())),
            3 => engine.states.scheduler.stop_found(&rid, 1),
            // The next plan reads the flag.
            4 => flag.raise(),
            5 => engine.submit_as(rid, &prompt, 2, &flag),
            6 => {
                flag.raise();
                engine.n_submitted += 1;
                engine.submit_as(RequestId::new("raised"), &prompt, 2, &flag);
            }
            7 => drop(
                engine
                    .states
                    .scheduler
                    .pin(Namespace::default(), prompt.into(), 50),
            ),
            8 => drop(engine.states.scheduler.unpin(1)),
            9 if round > 100 => engine.states.scheduler.cancel_all(),
            9 => engine.states.scheduler.pin_softly(
                u64::from(round),
                Some(u64::from(round) - 1),
                Namespace::default(),
                prompt.into(),
                50,
            ),
            10 => drop(engine.states.scheduler.unpin_softly(u64::from(round) - 1)),
            _ => (),
        }
        match round % 25 {
            _ if round < 50 => (),
            10 => drop(engine.states.scheduler.set_policy("lpm")),
            14 => drop(engine.states.scheduler.set_policy("none such")),
            15 => drop(engine.states.scheduler.set_eviction_policy("lfu")),
            20 => drop(engine.states.scheduler.set_policy("fcfs")),
            _ => (),
        }
        engine.states.scheduler.expire_pins(u64::from(round));
        engine.states.scheduler.expire_requests(f64::from(round));
        engine.drive();
        if round == 60 {
            let step = engine.steps.pop_front().expect("a step is running").step;
            let lost = Err(StepError::Lost("as the test requires".to_owned()));
            engine.states.scheduler.step_done(step, lost);
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
    while let Some(record) = reader.next().expect("the log is intact") {
        match record {
            Record::Entry(entry) => entries.push(entry),
            Record::Gap => panic!("the log has a gap"),
        }
    }
    entries
}

fn forged(setup: &ControlSetup, entries: &[Entry]) -> Vec<u8> {
    let mut log = file::opening(&Header::new(setup)).expect("it is plain data");
    let raw = entries.iter().fold(Vec::new(), |raw, entry| {
        postcard::to_extend(entry, raw).expect("it is plain data")
    });
    log.extend(file::block(&raw).expect("memory can be written"));
    log.extend(file::end(LogEnd::Closed, 0));
    log
}

#[test]
fn the_inputs_of_a_busy_scheduler_are_replayed_to_the_same_plans() {
    let log = log_of(NO_LIMIT, busy);
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    assert_eq!((replayed.ending, replayed.has_gap), (LogEnd::Closed, false));
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
        "PinSoftly",
        "UnpinSoftly",
        "expiry of pins",
        "expiry of requests",
        "SetPolicy",
        "ProbePrefixes",
        "PrefixesProbed",
        "raised cancel flags",
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
fn plans_with_states_are_replayed_to_the_same_slots() {
    for total_slots in [7, 10, 20] {
        let mut setup = setup();
        setup.limits.states = Some(StateLimits {
            total_slots,
            grid_tokens: 16,
        });
        let log = log_with(&setup, NO_LIMIT, |sink| {
            let engine = Engine::with_setup(&setup, Some(sink.recorder(1)));
            let engine = submit_rounds_to(engine, 120);
            let stats = engine.states.scheduler.stats();
            assert!(stats.cached_tokens > 0 && stats.integrity_failures == 0);
        });
        let replayed = replay_of(&log).expect("it can be replayed");
        assert_eq!(replayed.difference, None);
        assert!(replayed.counts.steps > 100 && replayed.counts.requests > 120);
        // A smaller state pool leads to other plans, and the replay finds a difference.
        let fewer = |setup: &ControlSetup| {
            let mut setup = setup.clone();
            setup.limits.states = setup.limits.states.map(|states| StateLimits {
                total_slots: 6,
                ..states
            });
            setup.build()
        };
        let replayed = replay(log.as_slice(), &fewer).expect("it can be replayed");
        assert!(replayed.difference.is_some(), "{total_slots} slots");
    }
}

#[test]
fn plans_with_windows_are_replayed_to_the_same_pages() {
    // Enough pages for a chunk of 24 tokens, a pinned prefix and a decode.
    for total_pages in [60, 80, 160] {
        let mut setup = setup();
        setup.limits.windows = Some(WindowLimits {
            tokens: 12,
            total_pages,
        });
        let log = log_with(&setup, NO_LIMIT, |sink| {
            let engine = Engine::with_setup(&setup, Some(sink.recorder(1)));
            let engine = submit_rounds_to(engine, 120);
            let stats = engine.states.scheduler.stats();
            assert!(stats.cached_tokens > 0 && stats.integrity_failures == 0);
        });
        let header = LogReader::open(log.as_slice()).expect("it is a log");
        assert_eq!(header.header().format_version, file::FORMAT_VERSION);
        let replayed = replay_of(&log).expect("it can be replayed");
        assert_eq!(replayed.difference, None);
        assert!(replayed.counts.steps > 100 && replayed.counts.requests > 120);
        // A smaller window pool leads to other plans, and the replay finds a difference.
        let fewer = |setup: &ControlSetup| {
            let mut setup = setup.clone();
            setup.limits.windows = setup.limits.windows.map(|windows| WindowLimits {
                total_pages: windows.total_pages - 1,
                ..windows
            });
            setup.build()
        };
        let replayed = replay(log.as_slice(), &fewer).expect("it can be replayed");
        assert!(replayed.difference.is_some(), "{total_pages} pages");
    }
}

#[test]
fn a_cancel_entry_records_whose_flag_it_has() {
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

#[test]
fn a_call_after_which_the_recorded_scheduler_died_is_a_difference() {
    let start = |generation| Entry::Start { generation };
    let log = forged(
        &setup(),
        &[start(1), Entry::CancelAll, Entry::Next, start(2)],
    );
    let difference = replay_of(&log).expect("it can be replayed").difference;
    let difference = difference.expect("this state does not die");
    assert_eq!((difference.record, difference.after), (4, "CancelAll"));
    assert!(
        difference
            .to_string()
            .contains("dead after this call in the log, alive in the replay")
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
