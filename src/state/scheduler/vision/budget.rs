//! The most work of a slice: that of the longest prefill step, in operations and in time.

use crate::plan::prefill_pace::MIN_TOKENS;
use crate::scheduler::{MAX_PREFILL_STEP_MS, Scheduler};

/// The share of a prefill step's operations that a slice has before any is measured: the tower's kernels may be slower,
/// and two slices are planned before the first one is measured.
const UNMEASURED: u64 = 4;

/// A prefill step of a new prompt while others decode.
struct LongestPrefill {
    tokens: usize,
    /// The expected time; `None` if steps are not bounded by time.
    seconds: Option<f64>,
}

impl Scheduler {
    /// The most operations of a slice of several units. A slice that costs no more operations than the longest prefill
    /// step takes longer if the tower computes fewer in a second, so that the measured time of slices is a bound too,
    /// unless steps have none.
    pub(super) fn slice_flops(&self) -> u64 {
        let Some(vision) = &self.vision else {
            return 0;
        };
        let LongestPrefill { tokens, seconds } = self.longest_prefill();
        let charged = (tokens as u64).saturating_mul(vision.limits.flops_per_token);
        let bound_s = seconds.unwrap_or(f64::from(MAX_PREFILL_STEP_MS) / 1e3);
        match vision.pace.flops_within(bound_s) {
            // Nothing relates the tower to the text model, so that time is the only bound.
            Some(in_time) if charged == 0 => in_time,
            Some(in_time) if seconds.is_some() => charged.min(in_time),
            Some(_) => charged,
            None => charged / UNMEASURED,
        }
    }

    fn longest_prefill(&self) -> LongestPrefill {
        let limits = &self.limits;
        let chunk = limits.chunk_tokens.unwrap_or(usize::MAX);
        let chunk = chunk.min(limits.max_prefill_tokens);
        let Some(pace) = self.pace.as_deref() else {
            return LongestPrefill {
                tokens: chunk,
                seconds: None,
            };
        };
        let least = MIN_TOKENS.max(limits.page_size.get());
        let in_time = pace.tokens_within(pace.step_s(), 0, 0).max(least);
        let tokens = chunk.min(in_time);
        LongestPrefill {
            tokens,
            seconds: Some(pace.seconds(0..tokens).min(pace.step_s())),
        }
    }
}
