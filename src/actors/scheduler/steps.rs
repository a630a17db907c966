//! The last steps, for the console. Every step is kept, in memory that is allocated once.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of steps that are kept.
const KEPT_STEPS: usize = 1024;

/// The largest number of steps in one answer.
const ANSWERED_STEPS: usize = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PastStep {
    pub id: u64,
    /// When the executor began the step, on the clock of [`souffleur_metrics::process_time`].
    pub start_us: u64,
    pub duration_us: u32,
    pub rows: u32,
    pub prefill_tokens: u32,
    /// Rows that the step decoded.
    pub decode_tokens: u32,
}

const _: () = assert!(size_of::<PastStep>() == 32, "the last steps fill 32 KiB");

pub(super) struct PastSteps(VecDeque<PastStep>);

/// The rows and tokens of a step in flight, as planned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepWork {
    pub(super) rows: usize,
    pub(super) prefill: usize,
    pub(super) decode: usize,
    /// The step has a slice of an image.
    pub(super) encodes: bool,
}

impl PastSteps {
    pub(super) fn new() -> Self {
        Self(VecDeque::with_capacity(KEPT_STEPS))
    }

    pub(super) fn push(&mut self, id: u64, work: StepWork, (start, took): (Duration, Duration)) {
        if self.0.len() == KEPT_STEPS {
            self.0.pop_front();
        }
        self.0.push_back(PastStep {
            id,
            start_us: start.as_micros() as u64,
            duration_us: u32::try_from(took.as_micros()).unwrap_or(u32::MAX),
            rows: work.rows as u32,
            prefill_tokens: work.prefill as u32,
            decode_tokens: work.decode as u32,
        });
    }

    /// The newest steps after the step `id`, oldest first.
    pub(super) fn after(&self, id: u64) -> Vec<PastStep> {
        let first = self.0.partition_point(|step| step.id <= id);
        let first = first.max(self.0.len().saturating_sub(ANSWERED_STEPS));
        self.0.range(first..).copied().collect()
    }

    /// The number of the newest step; 0 before the first.
    pub(super) fn newest(&self) -> u64 {
        self.0.back().map_or(0, |step| step.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(steps: &[PastStep]) -> Vec<u64> {
        steps.iter().map(|step| step.id).collect()
    }

    #[test]
    fn the_newest_steps_are_kept_and_answered() {
        let mut past = PastSteps::new();
        assert_eq!((past.newest(), past.after(0)), (0, Vec::new()));
        let capacity = past.0.capacity();
        let times = (Duration::from_millis(3), Duration::from_micros(7));
        for id in 1..=2000 {
            past.push(id, StepWork::default(), times);
        }
        assert_eq!((past.0.len(), past.0.capacity()), (KEPT_STEPS, capacity));
        assert_eq!(past.newest(), 2000);
        assert_eq!(ids(&past.after(1997)), [1998, 1999, 2000]);
        assert_eq!(ids(&past.after(0)), (1873..=2000).collect::<Vec<_>>());
        assert_eq!(ids(&past.after(2000)), [0; 0]);
        let step = past.after(1999)[0];
        assert_eq!((step.start_us, step.duration_us), (3000, 7));
    }
}
