//! top_k, top_p and min_p, and the draw among what they keep.

use std::cmp::Ordering;

use super::params::SamplingParams;

/// Tokens that may be drawn, with their weights, in the order in which the draw walks them.
///
/// The order is by token id when top_k and top_p drop nothing, else by probability, highest first, equals by id.
/// Weights are f64 and summed in that order, so the draw is the same on every run.
pub(super) struct Kept {
    /// (token, its probability times a common factor).
    tokens: Vec<(u32, f64)>,
    /// Sum of the weights.
    mass: f64,
}

/// First guess of how many tokens hold `top_p` of the mass; it grows eightfold until they do.
const NUCLEUS_GUESS: usize = 256;

impl Kept {
    /// `max` is the highest logit and finite; `temperature` is at least 1e-6.
    pub(super) fn of(logits: &[f32], max: f32, params: &SamplingParams) -> Self {
        let weight = |logit: f32| {
            ((f64::from(logit) - f64::from(max)) / f64::from(params.temperature)).exp()
        };
        // The most likely token weighs 1: min_p compares with it directly.
        let min_weight = f64::from(params.min_p);
        let mut total = 0.0;
        let mut tokens: Vec<(u32, f64)> = Vec::with_capacity(logits.len());
        for (token, &logit) in logits.iter().enumerate() {
            let weight = weight(logit);
            total += weight;
            if weight > 0.0 && weight >= min_weight {
                tokens.push((token as u32, weight));
            }
        }
        let top_k = usize::try_from(params.top_k).unwrap_or(usize::MAX);
        if top_k < tokens.len() {
            keep_highest(&mut tokens, top_k);
        }
        if params.top_p < 1.0 {
            keep_nucleus(&mut tokens, f64::from(params.top_p) * total);
        }
        let mass = tokens.iter().map(|token| token.1).sum();
        Self { tokens, mass }
    }

    /// Returns the first token whose cumulated weight exceeds the fraction `draw` (in [0, 1)) of all of it.
    pub(super) fn pick(&self, draw: f64) -> u32 {
        let target = draw * self.mass;
        let mut cumulated = 0.0;
        for &(token, weight) in &self.tokens {
            cumulated += weight;
            if cumulated > target {
                return token;
            }
        }
        self.tokens
            .last()
            .expect("the most likely token is always kept")
            .0
    }
}

/// Keeps the `k` highest tokens, sorted.
fn keep_highest(tokens: &mut Vec<(u32, f64)>, k: usize) {
    sort_highest(tokens, k);
    tokens.truncate(k);
}

/// Keeps each token before which, in rank order, there is at most `mass`.
fn keep_nucleus(tokens: &mut Vec<(u32, f64)>, mass: f64) {
    let mut sorted = 0;
    let mut kept = 0;
    let mut before = 0.0;
    while kept < tokens.len() && before <= mass {
        if kept == sorted {
            let more = (tokens.len() - sorted).min(NUCLEUS_GUESS.max(sorted * 7));
            sort_highest(&mut tokens[sorted..], more);
            sorted += more;
        }
        before += tokens[kept].1;
        kept += 1;
    }
    tokens.truncate(kept);
}

/// Brings the `k` highest tokens to the front and sorts them.
fn sort_highest(tokens: &mut [(u32, f64)], k: usize) {
    if k < tokens.len() {
        tokens.select_nth_unstable_by(k, by_rank);
    }
    tokens[..k].sort_unstable_by(by_rank);
}

/// Orders by weight, highest first, equals by id.
fn by_rank(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
