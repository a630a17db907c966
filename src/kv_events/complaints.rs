//! Limits the rate of warnings about faults of unauthenticated peers.

use std::cell::Cell;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// The shortest time between two warnings.
const INTERVAL: Duration = Duration::from_secs(30);

/// The time of the last warning, and the number of warnings suppressed since.
#[derive(Default)]
pub(super) struct Complaints {
    last: Cell<Option<Instant>>,
    suppressed: Cell<u64>,
}

impl Complaints {
    /// Logs every fault at debug level, and at most one per interval as a warning.
    pub(super) fn log(&self, what: &'static str, peer: Option<&str>, reason: &dyn Display) {
        tracing::debug!(peer, %reason, "{what}");
        if let Some(times) = self.count(Instant::now()) {
            tracing::warn!(peer, %reason, faults_since_last_warning = times, "{what}");
        }
    }

    /// Counts a fault. If a warning is due, returns the number of faults since the last warning.
    fn count(&self, now: Instant) -> Option<u64> {
        let times = self.suppressed.get().saturating_add(1);
        let last = self.last.get();
        if last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            self.suppressed.set(times);
            return None;
        }
        self.last.set(Some(now));
        self.suppressed.set(0);
        Some(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_counts_the_faults_since_the_last_one() {
        let complaints = Complaints::default();
        let began = Instant::now();
        assert_eq!(complaints.count(began), Some(1));
        for _ in 0..99 {
            assert_eq!(complaints.count(began + INTERVAL / 2), None);
        }
        assert_eq!(complaints.count(began + INTERVAL), Some(100));
        assert_eq!(complaints.count(began + INTERVAL), None);
    }
}
