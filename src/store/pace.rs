//! Limits the CPU time of the store's thread while the engine computes.
//!
//! Compute threads wait for each other after every kernel, so another thread that takes one of their cores for a
//! millisecond delays the step by most of that time. A low priority does not prevent this: compute threads yield their
//! cores while they wait, and a thread of any priority that gets a core keeps it until the next scheduler tick. So
//! writes are done in small pieces, with pauses in proportion to the CPU time that they took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest pause: the engine may become idle long before the pause ends.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Shows whether the engine is computing: set by the executor, read by the store's thread. Clones share one counter.
#[derive(Clone, Debug, Default)]
pub struct StepActivity(
    /// The number of starts and ends so far: odd while a step is in progress.
    Arc<AtomicU64>,
);

impl StepActivity {
    /// Marks the start of a step. Only one thread may call this and [`end`](Self::end).
    pub fn begin(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count | 1, Ordering::Relaxed);
    }

    /// Marks the end of the step. Does nothing if no step is in progress.
    pub fn end(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0
            .store(count.wrapping_add(count & 1), Ordering::Relaxed);
    }
}

pub(super) struct Pace {
    /// The share of one core that the thread may use.
    share: f64,
    activity: StepActivity,
    seen: u64,
    was_busy: bool,
}

impl Pace {
    /// Limits the thread to a share of one core, between 0 and 1, while steps are in progress.
    pub fn new(share: f64, activity: StepActivity) -> Self {
        Self {
            share: share.clamp(1e-4, 1.0),
            activity,
            seen: 0,
            was_busy: false,
        }
    }

    /// True if a step is in progress, or began or ended since the last call: steps follow each other closely.
    pub fn is_busy(&mut self) -> bool {
        let count = self.activity.0.load(Ordering::Relaxed);
        let before = std::mem::replace(&mut self.seen, count);
        self.was_busy = count % 2 == 1 || count != before;
        self.was_busy
    }

    /// The last result of [`is_busy`](Self::is_busy).
    pub fn was_busy(&self) -> bool {
        self.was_busy
    }

    /// How long to pause after work that took `spent` of CPU time.
    pub fn pause_after(&mut self, spent: Duration) -> Duration {
        if self.is_busy() {
            spent.mul_f64(1.0 / self.share - 1.0).min(MAX_PAUSE)
        } else {
            Duration::ZERO
        }
    }
}

/// Measures the CPU time of the calling thread since `start`; wall time where the system does not report CPU time.
pub(super) struct Stopwatch {
    #[cfg(target_os = "linux")]
    began: Duration,
    #[cfg(not(target_os = "linux"))]
    began: std::time::Instant,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            began: thread_time(),
            #[cfg(not(target_os = "linux"))]
            began: std::time::Instant::now(),
        }
    }

    pub fn spent(&self) -> Duration {
        #[cfg(target_os = "linux")]
        return thread_time().saturating_sub(self.began);
        #[cfg(not(target_os = "linux"))]
        return self.began.elapsed();
    }
}

#[cfg(target_os = "linux")]
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_pauses_only_while_the_engine_computes() {
        let step = StepActivity::default();
        let mut pace = Pace::new(0.02, step.clone());
        let spent = Duration::from_millis(1);
        assert_eq!(pace.pause_after(spent), Duration::ZERO);
        step.begin();
        assert_eq!(pace.pause_after(spent), Duration::from_millis(49));
        assert_eq!(pace.pause_after(spent), Duration::from_millis(49));
        step.end();
        assert!(pace.is_busy());
        assert_eq!(pace.pause_after(spent), Duration::ZERO);
        step.begin();
        step.end();
        assert!(pace.is_busy() && !pace.is_busy());
    }

    #[test]
    fn pauses_are_bounded_and_a_share_of_1_needs_none() {
        let step = StepActivity::default();
        step.begin();
        let second = Duration::from_secs(1);
        assert_eq!(Pace::new(0.0, step.clone()).pause_after(second), MAX_PAUSE);
        assert_eq!(Pace::new(1.0, step).pause_after(second), Duration::ZERO);
    }

    #[test]
    fn a_stopwatch_counts_work() {
        let watch = Stopwatch::start();
        let mut sum = 0u64;
        while watch.spent() < Duration::from_micros(50) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
