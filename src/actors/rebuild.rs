//! The backoff between attempts to rebuild the engine's actors (a unit).

use std::time::Duration;

/// The number of attempts to rebuild a unit after a death, and the waits before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildRules {
    /// Number of attempts; the first is made at once.
    pub attempts: usize,
    /// Wait between the first two attempts; each later wait is twice the previous one.
    pub first_wait: Duration,
    pub longest_wait: Duration,
}

impl RebuildRules {
    /// The wait after `failed` attempts; `None` after the last.
    pub fn wait_after(&self, failed: usize) -> Option<Duration> {
        if failed >= self.attempts {
            return None;
        }
        let doublings = u32::try_from(failed.saturating_sub(1)).unwrap_or(u32::MAX);
        let factor = 2_u32.saturating_pow(doublings);
        Some(
            self.first_wait
                .saturating_mul(factor)
                .min(self.longest_wait),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_end_with_the_attempts() {
        let rules = RebuildRules {
            attempts: 6,
            first_wait: Duration::from_secs(10),
            longest_wait: Duration::from_secs(60),
        };
        let waits = [1, 2, 3, 4, 5, 6].map(|failed| rules.wait_after(failed));
        let seconds = |s| Some(Duration::from_secs(s));
        let expected = [10, 20, 40, 60, 60].map(seconds);
        assert_eq!(waits[..5], expected);
        assert_eq!(waits[5], None);
        let many = RebuildRules {
            attempts: usize::MAX,
            ..rules
        };
        assert_eq!(many.wait_after(1 << 40), seconds(60));
    }
}
