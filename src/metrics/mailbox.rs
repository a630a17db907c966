//! Metrics of actors' mailboxes: waiting messages and handler times.
//!
//! The handles of a metrics recorder cannot be read, so the same numbers are also in atomics. Like the metrics, the
//! atomics belong to the process: all its engines share them, and they outlive the rebuild of an engine.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use metrics::{Gauge, Histogram, gauge, histogram};

use super::process_time;

pub struct MailboxMetrics {
    depth: Gauge,
    handler_seconds: Histogram,
    counts: Arc<Counts>,
}

struct Counts {
    actor: &'static str,
    message: &'static str,
    depth: AtomicI64,
    handled: AtomicU64,
    busy_ns: AtomicU64,
    longest_ns: AtomicU64,
    /// When a look first found messages since `depth` last rose from 0: no clock is read for a message that enters.
    waiting_since: Moment,
    handling_since: Moment,
}

/// A time on the clock of [`process_time`], in microseconds and increased by 1; 0 for none.
#[derive(Default)]
struct Moment(AtomicU64);

impl Moment {
    fn set(&self, at: Instant) {
        let us = process_time(at).as_micros() as u64;
        self.0.store(us + 1, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn us(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// The counts of each pair of actor and message that was registered.
static COUNTS: Mutex<Vec<Arc<Counts>>> = Mutex::new(Vec::new());

/// The numbers of one actor's messages of one type, in the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxCounts {
    pub actor: &'static str,
    pub message: &'static str,
    /// Messages in the mailbox.
    pub depth: u64,
    /// Messages whose handler has ended.
    pub handled: u64,
    /// The sum of the handlers' times.
    pub busy_us: u64,
    /// The longest time of a handler that has ended.
    pub longest_us: u64,
    /// When a look ([`look_at_mailboxes`], [`mailbox_counts`]) first found a message since the mailbox was empty, on the
    /// clock of [`process_time`]. `None` if it is empty now.
    pub waiting_since_us: Option<u64>,
    /// When the running handler began, on the same clock; `None` if none runs.
    pub handling_since_us: Option<u64>,
}

impl MailboxMetrics {
    pub fn register(actor: &'static str, message: &'static str) -> Arc<Self> {
        let depth = gauge!("souffleur_actor_mailbox_depth", "actor" => actor);
        let handler_seconds = histogram!(
            "souffleur_actor_handler_seconds", "actor" => actor, "message" => message
        );
        Arc::new(Self {
            depth,
            handler_seconds,
            counts: Counts::of(actor, message),
        })
    }

    /// The name of the type of message.
    pub fn message(&self) -> &'static str {
        self.counts.message
    }

    pub fn entered(&self) {
        self.depth.increment(1.0);
        if self.counts.depth.fetch_add(1, Ordering::Relaxed) <= 0 {
            self.counts.waiting_since.clear();
        }
    }

    pub fn left(&self) {
        self.depth.decrement(1.0);
        self.counts.depth.fetch_sub(1, Ordering::Relaxed);
    }

    /// A handler has begun, which ends with [`MailboxMetrics::handled`].
    pub fn began(&self, at: Instant) {
        self.counts.handling_since.set(at);
    }

    pub fn handled(&self, seconds: f64) {
        self.handler_seconds.record(seconds);
        let counts = &self.counts;
        counts.handling_since.clear();
        counts.handled.fetch_add(1, Ordering::Relaxed);
        let ns = nanoseconds(seconds);
        if ns > counts.longest_ns.load(Ordering::Relaxed) {
            counts.longest_ns.fetch_max(ns, Ordering::Relaxed);
        }
        self.worked(seconds);
    }

    /// Adds the time of work that the message causes on another thread, which the histogram does not contain.
    pub fn worked(&self, seconds: f64) {
        let ns = nanoseconds(seconds);
        self.counts.busy_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl Counts {
    fn of(actor: &'static str, message: &'static str) -> Arc<Self> {
        let mut all = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all
            .iter()
            .find(|counts| (counts.actor, counts.message) == (actor, message));
        if let Some(found) = found {
            return found.clone();
        }
        let counts = Arc::new(Self {
            actor,
            message,
            depth: AtomicI64::new(0),
            handled: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
            waiting_since: Moment::default(),
            handling_since: Moment::default(),
        });
        all.push(counts.clone());
        counts
    }

    fn look(&self, now: Instant) {
        if self.depth.load(Ordering::Relaxed) > 0 && self.waiting_since.us().is_none() {
            self.waiting_since.set(now);
        }
    }

    fn read(&self) -> MailboxCounts {
        let depth = self.depth.load(Ordering::Relaxed).max(0) as u64;
        MailboxCounts {
            actor: self.actor,
            message: self.message,
            depth,
            handled: self.handled.load(Ordering::Relaxed),
            busy_us: self.busy_ns.load(Ordering::Relaxed) / 1000,
            longest_us: self.longest_ns.load(Ordering::Relaxed) / 1000,
            waiting_since_us: self.waiting_since.us().filter(|_| depth > 0),
            handling_since_us: self.handling_since.us(),
        }
    }
}

/// Notes the time for messages that wait. The ages of messages are short by the time between two looks.
pub fn look_at_mailboxes() {
    look(&COUNTS.lock().unwrap_or_else(PoisonError::into_inner));
}

fn look(all: &[Arc<Counts>]) {
    let now = Instant::now();
    for counts in all {
        counts.look(now);
    }
}

/// The numbers of all mailboxes, in the order of their first registration.
pub fn mailbox_counts() -> Vec<MailboxCounts> {
    let all = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    look(&all);
    all.iter().map(|counts| counts.read()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_the_same_pair_share_their_counts() {
        let of_test = || {
            let all = mailbox_counts();
            all.into_iter().find(|counts| counts.actor == "of_a_test")
        };
        assert_eq!(of_test(), None);
        let first = MailboxMetrics::register("of_a_test", "Message");
        let second = MailboxMetrics::register("of_a_test", "Message");
        first.entered();
        second.entered();
        first.left();
        first.began(Instant::now());
        let handling = of_test().and_then(|counts| counts.handling_since_us);
        assert!(handling.is_some());
        first.handled(2e-6);
        second.worked(0.5);
        let found = of_test().expect("the pair is registered");
        assert!(found.waiting_since_us.is_some());
        let expected = MailboxCounts {
            actor: "of_a_test",
            message: "Message",
            depth: 1,
            handled: 1,
            busy_us: 500_002,
            longest_us: 2,
            handling_since_us: None,
            ..found
        };
        assert_eq!(found, expected);
        second.left();
        let empty = of_test().expect("the pair is registered");
        assert_eq!((empty.depth, empty.waiting_since_us), (0, None));
    }
}
