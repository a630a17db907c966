//! Limits the processor time of the store's thread while the engine computes.
//!
//! Compute threads wait for each other after every kernel, so a thread that takes the core of one of them for a
//! millisecond makes the step longer by a good part of it. A priority does not prevent that: these threads yield their
//! cores while they wait, and a thread of any priority that gets one keeps it until the next tick. So writes are done
//! in small pieces with rests between them, in proportion to the processor time that they took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest rest: the engine may be idle long before its end.
const MAX_REST: Duration = Duration::from_millis(500);

/// Whether the engine computes: its executor sets it, and the store's thread reads it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StepBeat(
    /// Beginnings and ends so far: an odd number while a step is in progress.
    Arc<AtomicU64>,
);

impl StepBeat {
    /// A step begins to compute. Only one thread may call this and [`end`](Self::end).
    pub fn begin(&self) {
        let beats = self.0.load(Ordering::Relaxed);
        self.0.store(beats | 1, Ordering::Relaxed);
    }

    /// The step has ended. Does nothing if none was in progress.
    pub fn end(&self) {
        let beats = self.0.load(Ordering::Relaxed);
        self.0
            .store(beats.wrapping_add(beats & 1), Ordering::Relaxed);
    }
}

pub(super) struct Pace {
    /// The share of one core that it may use.
    share: f64,
    beat: StepBeat,
    seen: u64,
    was_busy: bool,
}

impl Pace {
    /// Takes no more than a share of one core, between 0 and 1, while steps are in progress.
    pub fn new(share: f64, beat: StepBeat) -> Self {
        Self {
            share: share.clamp(1e-4, 1.0),
            beat,
            seen: 0,
            was_busy: false,
        }
    }

    /// True if a step is in progress, or began or ended since the last call: steps follow each other closely.
    pub fn is_busy(&mut self) -> bool {
        let beats = self.beat.0.load(Ordering::Relaxed);
        let before = std::mem::replace(&mut self.seen, beats);
        self.was_busy = beats % 2 == 1 || beats != before;
        self.was_busy
    }

    /// The last result of [`is_busy`](Self::is_busy).
    pub fn was_busy(&self) -> bool {
        self.was_busy
    }

    /// How long to rest after work that took `spent` of processor time.
    pub fn rest_after(&mut self, spent: Duration) -> Duration {
        if self.is_busy() {
            spent.mul_f64(1.0 / self.share - 1.0).min(MAX_REST)
        } else {
            Duration::ZERO
        }
    }
}

/// Processor time of the calling thread since its start; wall time where the system does not report it.
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
    fn an_idle_engine_is_no_reason_to_rest() {
        let beat = StepBeat::default();
        let mut pace = Pace::new(0.02, beat.clone());
        let spent = Duration::from_millis(1);
        assert_eq!(pace.rest_after(spent), Duration::ZERO);
        beat.begin();
        assert_eq!(pace.rest_after(spent), Duration::from_millis(49));
        assert_eq!(pace.rest_after(spent), Duration::from_millis(49));
        beat.end();
        assert!(pace.is_busy());
        assert_eq!(pace.rest_after(spent), Duration::ZERO);
        beat.begin();
        beat.end();
        assert!(pace.is_busy() && !pace.is_busy());
    }

    #[test]
    fn rests_are_bounded_and_a_whole_core_needs_none() {
        let beat = StepBeat::default();
        beat.begin();
        let second = Duration::from_secs(1);
        assert_eq!(Pace::new(0.0, beat.clone()).rest_after(second), MAX_REST);
        assert_eq!(Pace::new(1.0, beat).rest_after(second), Duration::ZERO);
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
