//! Estimates prefill time on this machine from past steps, and how many prefill tokens fit into a given time.
//!
//! The cost of a token grows with its depth, the number of tokens before it, but at most in proportion. So a
//! measurement at one depth gives an upper bound at every other depth, and no cost is underestimated. The estimator
//! reads no clock: durations are inputs, and equal inputs give equal answers on every machine (it computes only sums,
//! products and quotients of doubles).

use std::ops::Range;

use crate::step::{RowWork, StepRow};

/// Tokens of the first chunk, before anything is measured.
const FIRST_TOKENS: usize = 64;
/// The fewest tokens of a chunk: a step of fewer takes hardly less time.
pub(crate) const MIN_TOKENS: usize = 16;
/// Chunks are chosen so that the rows of a step are a multiple of this: kernels multiply rows in groups.
const ROW_GROUP: usize = 16;
/// The fewest rows that are rounded down to a multiple of [`ROW_GROUP`]: of fewer rows, rounding would lose too many.
const MIN_ROUNDED_ROWS: usize = 4 * ROW_GROUP;
/// Context length from which on a token's attention may cost more than the rest of the model.
const SHALLOW: usize = 1 << SHALLOW_BITS;
const SHALLOW_BITS: u32 = 10;
/// Number of depth classes: two for each power of two above [`SHALLOW`]. The last class is unbounded.
const N_CLASSES: usize = 32;
/// Weight of a new measurement in the moving average.
const WEIGHT: f64 = 0.5;

/// The number of prefill tokens of a step, and the sum of their depths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillWork {
    tokens: u64,
    depth_sum: u64,
}

impl PrefillWork {
    pub fn of(rows: &[StepRow]) -> Self {
        let mut work = Self::default();
        for row in rows {
            if let RowWork::Prefill { positions } = &row.work {
                work.add(positions.start as usize..positions.end as usize);
            }
        }
        work
    }

    pub fn add(&mut self, positions: Range<usize>) {
        let (first, tokens) = (positions.start as u64, positions.len() as u64);
        self.tokens += tokens;
        self.depth_sum += tokens * first + tokens * tokens.saturating_sub(1) / 2;
    }

    pub fn tokens(self) -> usize {
        self.tokens as usize
    }

    /// The mean depth.
    fn depth(self) -> usize {
        self.depth_sum.checked_div(self.tokens).unwrap_or(0) as usize
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct PrefillPace {
    step_s: f64,
    measurements: [Option<Measurement>; N_CLASSES],
}

/// A measured cost per token in one class of depths.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measurement {
    token_s: f64,
    depth: usize,
    /// Prefill tokens of the last step measured. A small step costs more per token than a large one.
    tokens: usize,
}

impl PrefillPace {
    /// A pace for steps of at most `step_ms`, before anything is measured.
    pub fn new(step_ms: u32) -> Self {
        Self {
            step_s: f64::from(step_ms) / 1e3,
            measurements: [None; N_CLASSES],
        }
    }

    /// Target upper bound on the time of a step, in seconds.
    pub fn step_s(&self) -> f64 {
        self.step_s
    }

    /// Records the duration of a step with this prefill, with or without decodes.
    pub fn note(&mut self, work: PrefillWork, micros: u64) {
        let (tokens, depth) = (work.tokens(), work.depth());
        if tokens == 0 {
            return;
        }
        let token_s = micros.max(1) as f64 / 1e6 / tokens as f64;
        let new = Measurement {
            token_s,
            depth,
            tokens,
        };
        // The cost per token of a short step is too high, and would replace a smaller bound from another depth.
        let bound = self.token_s(depth);
        let is_measured = self.measurements.iter().any(Option::is_some);
        let is_short = tokens.saturating_mul(2) < quotient(self.step_s, bound);
        let measurement = &mut self.measurements[class_of(depth)];
        *measurement = Some(match *measurement {
            Some(old) => old.updated(new, self.step_s),
            None if is_measured && is_short && token_s >= bound => return,
            None => new,
        });
    }

    /// Tokens from position `first` on that take at most `seconds`, in a step with `other_rows` more rows.
    pub fn tokens_within(&self, seconds: f64, first: usize, other_rows: usize) -> usize {
        // The guess is too high, since deeper tokens cost more. The cost at the middle of the guess corrects it.
        let guess = quotient(seconds, self.token_s(first));
        let tokens = quotient(seconds, self.token_s(first.saturating_add(guess / 2)));
        let rows = tokens.saturating_add(other_rows);
        let rounded = rows - rows % ROW_GROUP;
        match rounded.checked_sub(other_rows) {
            Some(fewer) if fewer >= MIN_TOKENS && rounded >= MIN_ROUNDED_ROWS => fewer,
            _ => tokens,
        }
    }

    /// Estimated time of these tokens of a sequence, in seconds.
    pub fn seconds(&self, positions: Range<usize>) -> f64 {
        let middle = positions.start + positions.len() / 2;
        positions.len() as f64 * self.token_s(middle)
    }

    /// The smallest upper bound that the measurements give for the cost of a token at this depth.
    fn token_s(&self, depth: usize) -> f64 {
        let class = class_of(depth);
        let mut shallower = self.measurements[..=class].iter().rev().flatten();
        let mut deeper = self.measurements[class..].iter().flatten();
        let below = shallower.next().map(|nearest| nearest.bound_at(depth));
        let above = deeper.next().map(|nearest| nearest.bound_at(depth));
        match (below, above) {
            (Some(below), Some(above)) => below.min(above),
            (Some(bound), None) | (None, Some(bound)) => bound,
            (None, None) => self.step_s / FIRST_TOKENS as f64,
        }
    }
}

impl Measurement {
    /// The moving average after another step: a small step may lower the cost, but not raise it.
    fn updated(self, new: Self, step_s: f64) -> Self {
        let usual = self.tokens.min(quotient(step_s, self.token_s));
        let old_cost = self.bound_at(new.depth);
        if new.tokens.saturating_mul(2) < usual && new.token_s >= old_cost {
            return self;
        }
        Self {
            token_s: old_cost + WEIGHT * (new.token_s - old_cost),
            ..new
        }
    }

    /// Upper bound on the cost of a token at another depth.
    fn bound_at(&self, depth: usize) -> f64 {
        let deeper_by = depth.saturating_sub(self.depth) as f64;
        self.token_s * (1.0 + deeper_by / self.depth.saturating_add(SHALLOW) as f64)
    }
}

fn class_of(depth: usize) -> usize {
    let depth = depth.saturating_add(SHALLOW);
    let power = depth.ilog2();
    let half = depth >> (power - 1) & 1;
    let class = 2 * (power - SHALLOW_BITS) as usize + half;
    class.min(N_CLASSES - 1)
}

fn quotient(seconds: f64, token_s: f64) -> usize {
    // Saturates.
    (seconds.max(0.0) / token_s) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Duration of a step on a machine where a step costs 50 ms, and each token 5 ms, or 10 ms after 8,192 tokens.
    fn micros(positions: Range<usize>) -> u64 {
        let tokens = positions.len() as u64;
        let middle = (positions.start + positions.end) as u64 / 2;
        50_000 + tokens * 5000 + tokens * 5000 * middle / 8192
    }

    fn work(positions: Range<usize>) -> PrefillWork {
        let mut work = PrefillWork::default();
        work.add(positions);
        work
    }

    fn measure(pace: &mut PrefillPace, positions: Range<usize>) {
        let micros = micros(positions.clone());
        pace.note(work(positions), micros);
    }

    fn chunk(pace: &PrefillPace, first: usize) -> usize {
        pace.tokens_within(pace.step_s(), first, 0).max(MIN_TOKENS)
    }

    #[test]
    fn first_chunk_is_small_and_the_next_ones_fill_the_time() {
        let mut pace = PrefillPace::new(500);
        assert_eq!(chunk(&pace, 0), FIRST_TOKENS);
        let mut first = 0;
        let mut took = Vec::new();
        while first < 16_000 {
            let end = first + chunk(&pace, first);
            took.push(micros(first..end));
            measure(&mut pace, first..end);
            first = end;
        }
        assert!(took.iter().all(|micros| *micros <= 520_000), "{took:?}");
        // At most three chunks, the first ones and the last one, take less than three quarters of the time.
        let filled = took.iter().filter(|micros| **micros >= 370_000);
        assert!(filled.count() + 3 >= took.len(), "{took:?}");
    }

    #[test]
    fn cost_at_a_depth_that_was_never_measured_is_not_underestimated() {
        let mut pace = PrefillPace::new(500);
        measure(&mut pace, 0..2048);
        for first in [2048, 10_000, 100_000, 1_000_000] {
            let end = first + pace.tokens_within(0.5, first, 0);
            assert!(micros(first..end) <= 550_000 || end - first < MIN_TOKENS);
        }
        // Shallower tokens cost no more.
        let mut pace = PrefillPace::new(500);
        measure(&mut pace, 100_000..100_128);
        let end = pace.tokens_within(0.5, 0, 0);
        assert!(micros(0..end) <= 500_000 && end > 0);
    }

    #[test]
    fn a_short_prefill_does_not_make_the_machine_look_slow() {
        let mut pace = PrefillPace::new(500);
        measure(&mut pace, 0..2048);
        let before = chunk(&pace, 512);
        measure(&mut pace, 512..517);
        assert_eq!(chunk(&pace, 512), before);
    }

    #[test]
    fn the_pace_adapts_to_a_slower_machine_after_large_steps() {
        let mut pace = PrefillPace::new(500);
        measure(&mut pace, 0..4096);
        let first = 2048;
        for _ in 0..6 {
            let end = first + chunk(&pace, first);
            pace.note(work(first..end), 4 * micros(first..end));
        }
        let end = first + chunk(&pace, first);
        assert!(4 * micros(first..end) <= 700_000);
    }

    #[test]
    fn rows_of_a_step_are_a_multiple_of_the_group_size() {
        let mut pace = PrefillPace::new(500);
        measure(&mut pace, 0..4096);
        for rows in [0, 1, 7, 16, 33] {
            let tokens = pace.tokens_within(0.5, 2048, rows);
            assert_eq!((tokens + rows) % ROW_GROUP, 0, "{tokens} and {rows}");
        }
    }

    #[test]
    fn classes_of_depth_are_in_order_and_without_gaps() {
        let classes: Vec<usize> = (0..1 << 16).map(class_of).collect();
        assert_eq!(classes[0], 0);
        assert!(classes.windows(2).all(|two| two[1] - two[0] <= 1));
        assert_eq!(class_of(usize::MAX), N_CLASSES - 1);
    }

    #[test]
    fn extreme_measurements_cause_no_overflow() {
        for micros in [0, 1, u64::MAX] {
            let mut pace = PrefillPace::new(1);
            pace.note(work(0..1), micros);
            pace.note(work(0..usize::MAX >> 40), micros);
            let _ = pace.tokens_within(f64::MAX, usize::MAX - 1, usize::MAX);
            let _ = pace.tokens_within(0.0, 0, 0);
            assert!(pace.seconds(0..64).is_finite());
        }
    }
}
