//! Metrics of restarts, and of requests that are continued or lost.
//!
//! As for mailboxes, the numbers are also in atomics of the process, because the handles of a recorder cannot be read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use souffleur_state::supervision::{Level, Restart};

const RESTARTS: &str = "souffleur_restarts_total";
const RESUMED: &str = "souffleur_requests_resumed_total";
const LOST: &str = "souffleur_requests_lost_total";
const PAUSE: &str = "souffleur_resume_pause_seconds";
/// The label of restarts that replace the Tokenizer too.
const TOKENIZER: &str = "tokenizer";

pub(super) const COUNTERS: [(&str, &str); 3] = [
    (
        RESTARTS,
        "Restarts of actors, by level: control (the weights stay in memory), tokenizer (control, and the Tokenizer), \
         executor (control, and the weights are loaded again).",
    ),
    (
        RESUMED,
        "Requests that were sent to a new Scheduler, counted each time.",
    ),
    (
        LOST,
        "Admitted requests that failed because of the engine: by a death, by a fault in their own work, or by failed \
         steps. Those that a shutdown ends are not counted.",
    ),
];

pub(super) const HISTOGRAMS: [(&str, &str, &[f64]); 1] = [(
    PAUSE,
    "Time from the death of an actor to the first results for the requests that continue.",
    &PAUSE_SECONDS,
)];

/// From a restart of the control actors to a load of the weights of a large model.
const PAUSE_SECONDS: [f64; 14] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

static N_RESUMED: AtomicU64 = AtomicU64::new(0);
static N_LOST: AtomicU64 = AtomicU64::new(0);
static N_STALE: AtomicU64 = AtomicU64::new(0);

/// Numbers of the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// Requests that were sent to a new Scheduler, counted each time.
    pub resumed: u64,
    pub lost: u64,
    /// Messages with results of an older generation.
    pub stale_results: u64,
}

pub fn recovery_counts() -> RecoveryCounts {
    RecoveryCounts {
        resumed: N_RESUMED.load(Ordering::Relaxed),
        lost: N_LOST.load(Ordering::Relaxed),
        stale_results: N_STALE.load(Ordering::Relaxed),
    }
}

/// Counts an admitted request that failed because of the engine. May be called in a drop.
pub fn request_lost() {
    counter!(LOST).increment(1);
    N_LOST.fetch_add(1, Ordering::Relaxed);
}

/// The restarts, counted by the Watchdog.
pub struct RestartMetrics([(&'static str, Counter); 3]);

impl RestartMetrics {
    pub fn register() -> Self {
        let levels = [Level::Control.as_str(), TOKENIZER, Level::Executor.as_str()];
        Self(levels.map(|level| (level, counter!(RESTARTS, "level" => level))))
    }

    pub fn restarted(&self, restart: &Restart) {
        let level = match restart.tokenizer {
            Some(_) => TOKENIZER,
            None => restart.level.as_str(),
        };
        if let Some((_, restarts)) = self.0.iter().find(|(known, _)| *known == level) {
            restarts.increment(1);
        }
    }
}

/// The requests that continue after deaths, counted by the Tokenizer.
pub struct ResumeMetrics {
    resumed: Counter,
    stale_messages: Counter,
    pause_seconds: Histogram,
}

impl ResumeMetrics {
    pub(super) fn register() -> Self {
        counter!(LOST).increment(0);
        Self {
            resumed: counter!(RESUMED),
            stale_messages: counter!("souffleur_stale_messages_total"),
            pause_seconds: histogram!(PAUSE),
        }
    }

    pub fn resumed(&self, requests: usize) {
        self.resumed.increment(requests as u64);
        N_RESUMED.fetch_add(requests as u64, Ordering::Relaxed);
    }

    /// Counts results of an older generation, which are dropped.
    pub fn stale(&self) {
        self.stale_messages.increment(1);
        N_STALE.fetch_add(1, Ordering::Relaxed);
    }

    pub fn paused(&self, pause: Duration) {
        self.pause_seconds.record(pause.as_secs_f64());
    }
}
