//! `new_token_ratio`: the fraction of the running requests' remaining output tokens for which memory is reserved.
//!
//! The ratio starts high, falls with every successful decode, and is computed anew after a retraction, as in SGLang.

/// Initial ratio, times the conservativeness.
const INITIAL_RATIO: f64 = 0.7;
/// Minimum ratio, as a fraction of the initial one.
const MIN_RATIO_FACTOR: f64 = 0.14;
/// Number of decode steps in which the ratio falls from the initial to the minimum one.
const DECAY_STEPS: f64 = 600.0;
/// A retraction frees memory for this many decode steps of each request that still runs.
pub const RETRACT_DECODE_STEPS: usize = 20;

#[derive(Clone, Copy, Debug)]
pub struct NewTokenRatio {
    initial: f64,
    min: f64,
    decay: f64,
    current: f64,
}

impl NewTokenRatio {
    pub fn new(conservativeness: f64) -> Self {
        let initial = (INITIAL_RATIO * conservativeness).min(1.0);
        let min = (initial * MIN_RATIO_FACTOR).min(1.0);
        Self {
            initial,
            min,
            decay: (initial - min) / DECAY_STEPS,
            current: initial,
        }
    }

    pub fn get(&self) -> f64 {
        self.current
    }

    /// Lowers the ratio after a decode that got the memory it needed.
    pub fn decay(&mut self) {
        self.current = (self.current - self.decay).max(self.min);
    }

    pub fn reset(&mut self) {
        self.current = self.initial;
    }

    /// Sets the ratio after a retraction. `running`: output tokens and `max_new_tokens` of each request that still
    /// runs.
    pub fn after_retraction(&mut self, running: impl Iterator<Item = (usize, usize)>) {
        let (mut outputs, mut limits, mut n) = (0, 0, 0);
        for (output_tokens, max_new_tokens) in running {
            outputs += output_tokens;
            limits += max_new_tokens;
            n += 1;
        }
        let ratio = (outputs + RETRACT_DECODE_STEPS * n) as f64 / (limits + 1) as f64;
        self.current = ratio.min(1.0);
    }
}
