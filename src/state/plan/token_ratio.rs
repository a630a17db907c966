//! `new_token_ratio`: of the tokens that running requests may still generate, the fraction reserved for them.
//!
//! The ratio starts high, decays with every successful decode, and jumps up after a retraction (SGLang's constants).

/// Initial ratio, times the conservativeness.
const INITIAL_RATIO: f64 = 0.7;
/// Least ratio, as a part of the initial one.
const MIN_RATIO_FACTOR: f64 = 0.14;
/// Decode steps from the initial to the least ratio.
const DECAY_STEPS: f64 = 600.0;
/// Decode steps of each remaining request that a retraction frees memory for.
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

    /// Sets the ratio after a retraction. `survivors`: output tokens and `max_new_tokens` of each request that still
    /// runs.
    pub fn after_retraction(&mut self, survivors: impl Iterator<Item = (usize, usize)>) {
        let (mut outputs, mut limits, mut n) = (0, 0, 0);
        for (output_tokens, max_new_tokens) in survivors {
            outputs += output_tokens;
            limits += max_new_tokens;
            n += 1;
        }
        let ratio = (outputs + RETRACT_DECODE_STEPS * n) as f64 / (limits + 1) as f64;
        self.current = ratio.min(1.0);
    }
}
