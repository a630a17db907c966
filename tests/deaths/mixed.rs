//! Waves of the 32 requests while faults of all kinds fire, in a separate process: no other test changes its threads,
//! descriptors and memory.
//!
//! `SOUFFLEUR_DEATHS_MIXED` sets the seconds (default: three waves, in which each kind of each actor fires once).

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use souffleur::chaos::{Actor, Kind};
use souffleur::config::EngineConfig;
use souffleur::kernels::cpu::Numa;
use souffleur::metrics::recovery_counts;
use souffleur::record::file::LogEnd;
use souffleur::record::replay::replay;
use souffleur::server::ServerConfig;
use souffleur::state::control::ControlSetup;

use crate::models::Model;
use crate::plan;
use crate::server::{recorder, wait_until};
use crate::undisturbed::Undisturbed;
use crate::watch::Firing;
use crate::wave::Wave;
use crate::world::World;
use crate::{number, seed};

const SECONDS: &str = "SOUFFLEUR_DEATHS_MIXED";
/// Set in the process of the waves.
const CHILD: &str = "SOUFFLEUR_DEATHS_MIXED_CHILD";
/// The waves without a time.
const WAVES: usize = 3;
/// Waves of a short run in which a fault has no occasion in the first ones.
const MAX_WAVES: usize = 20;
/// Threads that a runtime starts for blocking work, and ends after ten idle seconds.
const BLOCKING_THREAD: &str = "tokio-rt-worker";
/// The thread of the KV store, which may be off.
const STORE_THREAD: &str = "souffleur-store";
/// The process of the waves has the server's parameters of `malloc` (`src/cli/malloc.rs`) on two cores, and keeps no
/// debug information.
const ENVIRONMENT: [(&str, &str); 5] = [
    (CHILD, "1"),
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_MMAP_THRESHOLD_", "262144"),
    ("MALLOC_TRIM_THRESHOLD_", "262144"),
    ("RUST_BACKTRACE", "0"),
];
/// The first third of the run warms up. Nothing may grow between the other two.
const THIRD: f64 = 1.0 / 3.0;
/// The most memory in the last third of the run, compared with that in the second.
const MAX_GROWTH: f64 = 1.05;
/// Small buffers, which are full before the end of the warm-up: the system counts a page from its first use. The KV
/// pool of an executor that was loaded again is empty, so with several NUMA nodes it is touched when it is allocated.
const MAX_TOTAL_TOKENS: usize = 8192;
const KV_HOST_BYTES: u64 = 2 << 20;
const KEPT_RESPONSES: usize = 16;
/// Every wave has a chunk of this size. In larger ones the activations depend on the number of tokens that are computed
/// again after a death.
const CHUNK_TOKENS: i64 = 128;
/// With a time, firings of each kind of each actor in an undisturbed wave, on average.
const FIRINGS_OF_A_WAVE: f64 = 0.25;
/// With a time, random firings of the panics that are allowed five times in a minute.
const MOST_PANICS: usize = 4;
/// Lost steps in a minute, after which one more makes the engine load the weights again.
const LOST_STEPS: usize = 20;

/// The kinds that are not mixed in: they fail requests by definition, or the log does not replay after them.
const LEFT_OUT: [(Actor, Kind); 6] = [
    (Actor::ExecutorThread, Kind::Reject),
    (Actor::ExecutorThread, Kind::Refuse),
    (Actor::Allocator, Kind::Refuse),
    (Actor::Record, Kind::IoError),
    (Actor::Record, Kind::DiskFull),
    (Actor::Record, Kind::TornWrite),
];

/// A message and a phase.
type Place = (&'static str, &'static str);

/// The points at which a kind of fault fires.
fn places(actor: Actor, kind: Kind) -> Vec<Place> {
    let is_plain = Kind::PLAIN.contains(&kind);
    let special: &[Place] = match (actor, kind) {
        (Actor::Tokenizer, Kind::Panic) => &[("TokensReady", "middle"), ("Relink", "entry")],
        (Actor::Scheduler, Kind::Panic) => &[("ResumeRequests", "entry")],
        (Actor::ExecutorThread, Kind::Lose) => &[("launch", "exit")],
        (Actor::ExecutorThread, Kind::Sticky) => &[("launch", "entry")],
        (Actor::KvStore, Kind::Refuse) => &[("Write", "middle"), ("Find", "middle")],
        (Actor::KvStore, Kind::DropReply) => &[("Found", "entry")],
        (Actor::KvStore, Kind::IoError | Kind::DiskFull | Kind::TornWrite) => {
            &[("write_at", "entry")]
        }
        _ => &[],
    };
    assert!(is_plain || !special.is_empty(), "{actor} {kind}");
    let plain: &[Place] = if is_plain {
        plan::target_of(actor.name()).points
    } else {
        &[]
    };
    [plain, special].concat()
}

/// How often a wave passes a point, at least.
fn passages(actor: Actor, (message, phase): Place) -> u64 {
    match (actor, message, phase) {
        // Of each request in each step: a second firing in a row would fail the request.
        (Actor::Tokenizer, "TokensReady", "middle") => 2000,
        (_, "Relink" | "ResumeRequests", _) | (Actor::Record, ..) => 1,
        (Actor::KvStore, "StoreOrders" | "write_at", _) => 4,
        // Of each request.
        (Actor::KvStore, ..) => 30,
        (Actor::KvEvents, ..) | (_, "SequencesEnded", _) => 10,
        _ => 100,
    }
}

/// A spec without its chance. Hangs are shorter than the limit of the watchdog.
fn spec(actor: Actor, kind: Kind, (message, phase): Place) -> String {
    let length = match kind {
        Kind::Delay => ",for=20ms",
        Kind::Hang | Kind::HangHard => ",for=50ms",
        _ => "",
    };
    format!("actor={actor},kind={kind},message={message},phase={phase}{length}")
}

fn kinds() -> impl Iterator<Item = (Actor, Kind)> {
    // Only replicas have a Router, and the models have no vision tower.
    let is_here = |actor: &&Actor| !matches!(actor, Actor::Router | Actor::Vision);
    let actors = Actor::ALL.iter().filter(is_here);
    let all = actors.flat_map(|actor| {
        let kinds = actor.kinds().iter();
        kinds.map(move |kind| (*actor, *kind))
    });
    all.filter(|fault| !LEFT_OUT.contains(fault))
}

/// One firing of each kind of each actor, in the first waves.
fn once_each() -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed());
    let once = kinds().map(|(actor, kind)| {
        let places = places(actor, kind);
        let place = places[random.usize(..places.len())];
        let after = random.u64(1..=passages(actor, place) * (WAVES as u64 - 1));
        format!("{},after={after}", spec(actor, kind, place))
    });
    once.collect()
}

/// All kinds at all points, for as long as the engine runs.
fn for_ever() -> Vec<String> {
    let mut specs = Vec::new();
    for (actor, kind) in kinds() {
        let places = places(actor, kind);
        let is_limited = matches!(actor, Actor::KvEvents | Actor::Record) && kind == Kind::Panic;
        for place in &places {
            let passages = passages(actor, *place) * places.len() as u64;
            let probability = FIRINGS_OF_A_WAVE / passages as f64;
            let mut spec = format!("{},probability={probability}", spec(actor, kind, *place));
            if is_limited {
                spec += &format!(",count={}", MOST_PANICS / places.len());
            }
            specs.push(spec);
        }
    }
    specs
}

/// The process at a moment without requests.
#[derive(Clone, Copy, Debug, Default)]
struct Footprint {
    /// The most since the last footprint. The executor's buffers are small after it was loaded again, until many
    /// requests run at once.
    resident_kib: u64,
    n_threads: usize,
    n_descriptors: usize,
}

impl Footprint {
    fn take() -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("Linux has the file");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let resident = resident.and_then(|line| line.trim().strip_suffix(" kB"));
        let resident_kib = resident.and_then(|number| number.parse().ok());
        fs::write("/proc/self/clear_refs", "5").expect("Linux resets the maximum");
        Self {
            resident_kib: resident_kib.expect("the file has the resident memory"),
            n_threads: n_threads(),
            n_descriptors: entries("/proc/self/fd").count(),
        }
    }

    /// The largest numbers of two moments.
    fn max(self, other: Self) -> Self {
        Self {
            resident_kib: self.resident_kib.max(other.resident_kib),
            n_threads: self.n_threads.max(other.n_threads),
            n_descriptors: self.n_descriptors.max(other.n_descriptors),
        }
    }
}

fn n_threads() -> usize {
    // A thread may end meanwhile.
    let names =
        entries("/proc/self/task").filter_map(|task| fs::read_to_string(task.join("comm")).ok());
    let names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
    let count = |wanted: &str| names.iter().filter(|name| *name == wanted).count();
    let n_stores = count(STORE_THREAD);
    names.len() - count(BLOCKING_THREAD) - n_stores + n_stores.max(1)
}

fn entries(folder: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).expect("Linux has the folder");
    entries.map(|entry| entry.expect("the folder can be listed").path())
}

fn configure(config: &mut EngineConfig, server: &mut ServerConfig) {
    server.responses_max_count = KEPT_RESPONSES;
    config.max_restarts = "1000/60s".parse().expect("a limit");
    config.watchdog_timeout_s = 30.0;
    config.max_total_tokens = Some(MAX_TOTAL_TOKENS);
    config.kv_host_bytes = Some(KV_HOST_BYTES);
    config.numa = Numa::Simulated(2);
    config.chunked_prefill_size = CHUNK_TOKENS;
}

/// The waves of a run.
struct Run {
    seconds: Option<u64>,
    began: Instant,
    n_waves: usize,
    /// The process after the waves of each third.
    thirds: [Footprint; 3],
}

impl Run {
    /// The part of the run that is over.
    fn progress(&self) -> f64 {
        match self.seconds {
            Some(seconds) => self.began.elapsed().as_secs_f64() / seconds as f64,
            None => self.n_waves as f64 / WAVES as f64,
        }
    }

    /// Whether a short run needs another wave, since a fault had no occasion yet.
    fn lacks_faults(&self, world: &World) -> bool {
        let has_room = self.seconds.is_none() && self.n_waves < MAX_WAVES;
        has_room && !missing(&world.watch.firings()).iter().all(is_excused)
    }

    fn run(&mut self, world: &World, known: &Undisturbed) {
        while self.n_waves == 0 || self.progress() < 1.0 || self.lacks_faults(world) {
            let third = (self.progress() / THIRD) as usize;
            known.check(&Wave::run(world, &known.calls, || ()));
            world.check_idle();
            // The recorder keeps all samples until then.
            recorder().run_upkeep();
            self.n_waves += 1;
            let footprint = &mut self.thirds[third.min(2)];
            let now = Footprint::take();
            eprintln!("wave {}: {now:?}", self.n_waves);
            *footprint = footprint.max(now);
        }
    }

    /// Checks that nothing has grown since the second third.
    fn check_growth(&self) {
        let (waves, [warm_up, before, last]) = (self.n_waves, self.thirds);
        eprintln!("mixed: {waves} waves, in the second third {before:?}, in the last {last:?}");
        let most = before.max(warm_up);
        wait_until("threads and descriptors are as few as before", || {
            let now = Footprint::take();
            now.n_threads <= most.n_threads && now.n_descriptors <= most.n_descriptors
        });
        if self.seconds.is_some() {
            let most_kib = before.resident_kib as f64 * MAX_GROWTH;
            assert!(last.resident_kib as f64 <= most_kib, "{last:?}, {before:?}");
        }
    }
}

/// The kinds of each actor that have fired, with their names.
fn fired(firings: &[Firing]) -> BTreeSet<(&str, &str)> {
    let firings = firings.iter();
    let names = firings.map(|firing| (firing.point.actor.as_str(), firing.kind.as_str()));
    names.collect()
}

/// The kinds of each actor that have not fired.
fn missing(firings: &[Firing]) -> Vec<(&'static str, &'static str)> {
    let fired = fired(firings);
    kinds()
        .map(|(actor, kind)| (actor.name(), kind.name()))
        .filter(|fault| !fired.contains(fault))
        .collect()
}

/// After an error of the disk, the store saves no blocks for a minute, so some of its kinds may not fire.
fn is_excused(fault: &(&str, &str)) -> bool {
    fault.0 == Actor::KvStore.name()
}

/// Checks that the mix was mixed.
fn check_firings(firings: &[Firing]) {
    let missing = missing(firings);
    eprintln!("mixed: {} firings, without {missing:?}", firings.len());
    assert!(missing.iter().all(is_excused), "{missing:?}");
    assert!(
        fired(firings).iter().any(is_excused),
        "the store had no fault"
    );
}

/// The most executors that the faults make the engine load.
fn most_builds(firings: &[Firing]) -> usize {
    let count = |is_it: fn(&Firing) -> bool| firings.iter().filter(|one| is_it(one)).count();
    let n_sticky = count(|one| one.kind == "sticky");
    let n_lost = count(|one| {
        let is_step = ["executor_thread", "worker"].contains(&one.point.actor.as_str());
        is_step && ["panic", "lose", "sticky"].contains(&one.kind.as_str())
    });
    1 + n_sticky + n_lost / LOST_STEPS
}

fn check_log(log: &[u8]) {
    let replayed = replay(log, &ControlSetup::build).expect("the log can be replayed");
    let difference = replayed.difference.as_ref().map(ToString::to_string);
    assert_eq!(difference, None);
    assert_eq!((replayed.ending, replayed.has_gap), (LogEnd::Closed, false));
    let counts = replayed.counts;
    assert!(counts.units > 1 && counts.resumed > 0, "{counts:?}");
    eprintln!("mixed: the log replays, {counts:?}");
}

/// The test after this one runs this one in a process, outside of which it does nothing.
#[test]
fn waves_among_faults() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let known = Undisturbed::of(Model::Bundled);
    let seconds = number(SECONDS);
    let mut faults = once_each();
    if seconds.is_some() {
        faults.extend(for_ever());
    }
    let world = World::configured(Model::Bundled, &faults, None, configure);
    let mut run = Run {
        seconds,
        began: Instant::now(),
        n_waves: 0,
        thirds: Default::default(),
    };
    run.run(&world, known);
    run.check_growth();
    let (watch, gate) = (world.watch.clone(), world.gate.clone());
    let log = world.stop();
    let firings = watch.firings();
    check_firings(&firings);
    assert!(gate.n_builds() <= most_builds(&firings), "{firings:?}");
    assert_eq!(recovery_counts().lost, 0);
    check_log(&log);
}

#[test]
fn faults_of_all_kinds_lose_no_request_and_leave_nothing() {
    let program = std::env::current_exe().expect("the test runs from a file");
    let mut command = Command::new(program);
    command.args(["mixed::waves_among_faults", "--exact", "--nocapture"]);
    let output = command.envs(ENVIRONMENT).output().expect("the test runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.starts_with("mixed: "))
        .collect();
    assert_eq!(told.len(), 3, "{log}");
    told.iter().for_each(|line| eprintln!("{line}"));
}

/// No replay repeats these faults, so they are in another run.
#[test]
fn a_lack_of_pages_and_errors_of_the_logs_disk_lose_no_request() {
    let known = Undisturbed::of(Model::Bundled);
    let middle = known.middle_launch();
    let refuse =
        |after: u64| format!("actor=allocator,kind=refuse,message=ReservePages,after={after}");
    let mut faults = [middle, middle * 2 / 3, middle / 3].map(refuse).to_vec();
    faults.push("actor=record,kind=disk_full,message=write,after=2".to_owned());
    faults.push("actor=record,kind=torn_write,message=write,after=1".to_owned());
    let world = World::start(Model::Bundled, &faults, None);
    known.check(&Wave::run(&world, &known.calls, || ()));
    world.check_end();
    let watch = world.watch.clone();
    drop(world);
    let firings = watch.firings();
    let fired = fired(&firings);
    for fault in [("allocator", "refuse"), ("record", "torn_write")] {
        assert!(fired.contains(&fault), "{fault:?} did not fire: {fired:?}");
    }
}
