//! Metrics of actors' mailboxes: waiting messages and handler times.
//!
//! The handles of a metrics recorder cannot be read, so the same numbers are also in atomics. Like the metrics, the
//! atomics belong to the process: all its engines share them, and they outlive the rebuild of an engine.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Gauge, Histogram, gauge, histogram};

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

    pub fn entered(&self) {
        self.depth.increment(1.0);
        self.counts.depth.fetch_add(1, Ordering::Relaxed);
    }

    pub fn left(&self) {
        self.depth.decrement(1.0);
        self.counts.depth.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn handled(&self, seconds: f64) {
        self.handler_seconds.record(seconds);
        self.counts.handled.fetch_add(1, Ordering::Relaxed);
        self.worked(seconds);
    }

    /// Adds the time of work that the message causes on another thread, which the histogram does not contain.
    pub fn worked(&self, seconds: f64) {
        let ns = (seconds * 1e9) as u64;
        self.counts.busy_ns.fetch_add(ns, Ordering::Relaxed);
    }
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
        });
        all.push(counts.clone());
        counts
    }

    fn read(&self) -> MailboxCounts {
        MailboxCounts {
            actor: self.actor,
            message: self.message,
            depth: self.depth.load(Ordering::Relaxed).max(0) as u64,
            handled: self.handled.load(Ordering::Relaxed),
            busy_us: self.busy_ns.load(Ordering::Relaxed) / 1000,
        }
    }
}

/// The numbers of all mailboxes, in the order of their first registration.
pub fn mailbox_counts() -> Vec<MailboxCounts> {
    let all = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
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
        first.handled(2e-6);
        second.worked(0.5);
        let expected = MailboxCounts {
            actor: "of_a_test",
            message: "Message",
            depth: 1,
            handled: 1,
            busy_us: 500_002,
        };
        assert_eq!(of_test(), Some(expected));
    }
}
