//! Estimates the time of the tower's work on this machine from past slices.
//!
//! Durations are inputs, as in `prefill_pace`; no clock is read here.

/// Weight of a new measurement in the moving average.
const WEIGHT: f64 = 0.5;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TowerPace {
    measured: Option<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    seconds_per_flop: f64,
    /// Operations of the last slice measured. A small slice costs more per operation than a large one.
    flops: u64,
}

impl TowerPace {
    /// Records the duration of a step with this slice, with or without decodes.
    pub(super) fn note(&mut self, flops: u64, micros: u64) {
        if flops == 0 {
            return;
        }
        let new = Measured {
            seconds_per_flop: micros.max(1) as f64 / 1e6 / flops as f64,
            flops,
        };
        self.measured = Some(match self.measured {
            None => new,
            // A short slice may lower the cost, but not raise it.
            Some(old) if flops < old.flops / 2 && new.seconds_per_flop >= old.seconds_per_flop => {
                old
            }
            Some(old) => Measured {
                seconds_per_flop: old.seconds_per_flop
                    + WEIGHT * (new.seconds_per_flop - old.seconds_per_flop),
                flops,
            },
        });
    }

    /// Operations that take at most `seconds`; `None` before a measurement.
    pub(super) fn flops_within(&self, seconds: f64) -> Option<u64> {
        // Saturates.
        self.measured
            .map(|measured| (seconds.max(0.0) / measured.seconds_per_flop) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_for_a_time_follow_the_measured_rate() {
        let mut pace = TowerPace::default();
        assert_eq!(pace.flops_within(0.5), None);
        // 1 GFLOP/s.
        pace.note(1_000_000_000, 1_000_000);
        let half = pace.flops_within(0.5).expect("a measurement");
        assert!((499_000_000..=501_000_000).contains(&half), "{half}");
        // A short slice with decodes does not make the tower look slow, a long one does.
        pace.note(1_000_000, 1_000_000);
        assert_eq!(pace.flops_within(0.5), Some(half));
        for _ in 0..10 {
            pace.note(1_000_000_000, 4_000_000);
        }
        let slow = pace.flops_within(0.5).expect("a measurement");
        assert!((120_000_000..130_000_000).contains(&slow), "{slow}");
    }

    #[test]
    fn extreme_measurements_cause_no_overflow() {
        let mut pace = TowerPace::default();
        for (flops, micros) in [(0, 5), (1, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
            pace.note(flops, micros);
            let _ = pace.flops_within(f64::MAX);
            let _ = pace.flops_within(-1.0);
        }
    }
}
