//! Rate-limited warnings about unauthenticated peers' faults.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Between two warnings.
const INTERVAL: Duration = Duration::from_secs(30);

/// The time of the last warning and the number of suppressed ones since.
#[derive(Default)]
pub(super) struct Complaints {
    last: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

impl Complaints {
    /// Logs every reason at debug level, and at most one an interval as a warning.
    pub(super) fn log(&self, what: &'static str, reason: &dyn std::fmt::Display) {
        tracing::debug!(%reason, "{what}");
        if let Some(times) = self.times(Instant::now()) {
            tracing::warn!(%reason, times, "{what}");
        }
    }

    /// The number of reasons since the last warning, if another one is due.
    fn times(&self, now: Instant) -> Option<u64> {
        let times = self.untold.get().saturating_add(1);
        let last = self.last.get();
        if last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            self.untold.set(times);
            return None;
        }
        self.last.set(Some(now));
        self.untold.set(0);
        Some(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_an_interval_counts_those_that_were_none() {
        let complaints = Complaints::default();
        let began = Instant::now();
        assert_eq!(complaints.times(began), Some(1));
        for _ in 0..99 {
            assert_eq!(complaints.times(began + INTERVAL / 2), None);
        }
        assert_eq!(complaints.times(began + INTERVAL), Some(100));
        assert_eq!(complaints.times(began + INTERVAL), None);
    }
}
