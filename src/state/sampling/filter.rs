//! The filters top_k, top_p and min_p, and the draw among the tokens that they keep.

use std::cmp::Ordering;

use super::exp::exp_of_negative;
use super::params::SamplingParams;

/// Reusable buffers: drawing with them allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct DrawScratch {
    /// The unnormalised probability of each token; 0 if min_p drops the token.
    weights: Vec<f64>,
    ranked: Vec<(u32, f64)>,
}

impl DrawScratch {
    pub fn reserve(&mut self, vocab_size: usize) {
        self.weights.clear();
        self.weights.reserve(vocab_size);
        self.ranked.clear();
        self.ranked.reserve(vocab_size);
    }
}

/// The kept tokens and their weights, in the order of the draw.
///
/// The order is by token id if top_k and top_p drop nothing, else by descending probability, ties by id. Weights are
/// f64 and are summed in a fixed order, so the draw is reproducible.
pub(super) struct KeptTokens<'a> {
    tokens: Order<'a>,
    mass: f64,
}

enum Order<'a> {
    /// All tokens that weigh more than 0.
    ById(&'a [f64]),
    ByRank(&'a [(u32, f64)]),
}

/// Number of weights in a block, which is summed in parallel lanes.
const BLOCK: usize = 64;
/// Number of weight classes: eight for each power of two; the last class extends to 0.
const CLASSES: usize = 512;

impl<'a> KeptTokens<'a> {
    /// `max` is the highest logit and finite; `temperature` is at least 1e-6.
    #[inline(always)]
    pub(super) fn of(
        logits: &[f32],
        max: f32,
        params: &SamplingParams,
        scratch: &'a mut DrawScratch,
    ) -> Self {
        fill_weights(logits, max, params.temperature, &mut scratch.weights);
        let by_rank = ByRank::of(params, logits.len());
        // top_p refers to the whole vocabulary, regardless of min_p.
        let total = if params.has_nucleus() {
            total_of(&scratch.weights)
        } else {
            f64::INFINITY
        };
        // The most likely token has weight 1, so min_p is the threshold itself.
        let min_weight = f64::from(params.min_p);
        if min_weight > 0.0 {
            for weight in &mut scratch.weights {
                *weight = if *weight >= min_weight { *weight } else { 0.0 };
            }
        }
        match by_rank {
            Some(by_rank) => by_rank.keep(f64::from(params.top_p) * total, scratch),
            None => Self {
                mass: total_of(&scratch.weights),
                tokens: Order::ById(&scratch.weights),
            },
        }
    }

    /// Returns the first token whose cumulative weight exceeds the fraction `draw` (in [0, 1)) of the total.
    #[inline(always)]
    pub(super) fn pick(&self, draw: f64) -> u32 {
        let target = draw * self.mass;
        match self.tokens {
            Order::ById(weights) => pick_by_id(weights, target),
            Order::ByRank(tokens) => {
                let mut cumulated = 0.0;
                let found = tokens.iter().find(|token| {
                    cumulated += token.1;
                    cumulated > target
                });
                found.or(tokens.last()).expect(NEVER_EMPTY).0
            }
        }
    }
}

const NEVER_EMPTY: &str = "the most likely token is always kept";

/// Skips blocks while the cumulative weight is at most the target, then scans one block.
#[inline(always)]
fn pick_by_id(weights: &[f64], target: f64) -> u32 {
    let mut before = 0.0;
    for (block, first) in weights.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        let end = before + block_sum(block);
        if end > target {
            let mut cumulated = before;
            let found = block.iter().position(|weight| {
                cumulated += weight;
                cumulated > target
            });
            if let Some(index) = found {
                return first + index as u32;
            }
        }
        before = end;
    }
    // The total was summed in another order, so rounding may leave this sum below the target.
    weights
        .iter()
        .rposition(|&weight| weight > 0.0)
        .expect(NEVER_EMPTY) as u32
}

#[inline(always)]
fn total_of(weights: &[f64]) -> f64 {
    weights.chunks(BLOCK).map(block_sum).sum()
}

#[inline(always)]
fn block_sum(block: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let chunks = block.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for lane in 0..8 {
            lanes[lane] += chunk[lane];
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// Fills `weights` with `exp((logit - max) / temperature)`.
#[inline(always)]
fn fill_weights(logits: &[f32], max: f32, temperature: f32, weights: &mut Vec<f64>) {
    let (max, temperature) = (f64::from(max), f64::from(temperature));
    weights.clear();
    weights.resize(logits.len(), 0.0);
    for (weight, &logit) in weights.iter_mut().zip(logits) {
        *weight = exp_of_negative((f64::from(logit) - max) / temperature);
    }
}

struct ByRank {
    top_k: usize,
    has_nucleus: bool,
}

impl ByRank {
    fn of(params: &SamplingParams, vocab_size: usize) -> Option<Self> {
        params.filters_by_rank(vocab_size).then(|| Self {
            top_k: params
                .rank_limit()
                .map_or(usize::MAX, |limit| limit as usize),
            has_nucleus: params.has_nucleus(),
        })
    }

    /// Keeps the `top_k` highest tokens, and of those each whose predecessors sum to at most `mass`.
    #[inline(always)]
    fn keep(self, mass: f64, scratch: &mut DrawScratch) -> KeptTokens<'_> {
        let DrawScratch { weights, ranked } = scratch;
        let min_weight = min_weight_of(self.last_class(weights, mass));
        ranked.clear();
        let tokens = (0u32..).zip(weights.iter().copied());
        ranked.extend(tokens.filter(|token| token.1 >= min_weight));
        ranked.sort_unstable_by(by_rank);
        ranked.truncate(self.top_k);
        if self.has_nucleus {
            keep_nucleus(ranked, mass);
        }
        KeptTokens {
            mass: ranked.iter().map(|token| token.1).sum(),
            tokens: Order::ByRank(ranked),
        }
    }

    /// The last class with a token that the filter may keep.
    #[inline(always)]
    fn last_class(&self, weights: &[f64], mass: f64) -> usize {
        let mut classes = [(0usize, 0f64); CLASSES];
        for &weight in weights.iter().filter(|weight| **weight > 0.0) {
            let (count, mass) = &mut classes[class(weight)];
            *count += 1;
            *mass += weight;
        }
        // Sums in rank order differ from sums by class, but by far less than this margin.
        let mass_limit = mass * (1.0 + 1e-9);
        let mut sum = (0, 0.0);
        let is_last = |class: &(usize, f64)| {
            sum = (sum.0 + class.0, sum.1 + class.1);
            sum.0 >= self.top_k || sum.1 > mass_limit
        };
        classes.iter().position(is_last).unwrap_or(CLASSES - 1)
    }
}

/// The class of a weight in (0, 1], descending: its exponent and the top three bits of its mantissa.
#[inline(always)]
fn class(weight: f64) -> usize {
    let bits = |weight: f64| (weight.to_bits() >> 49) as usize;
    bits(1.0).saturating_sub(bits(weight)).min(CLASSES - 1)
}

/// The smallest positive weight of a class.
#[inline(always)]
fn min_weight_of(class: usize) -> f64 {
    if class < CLASSES - 1 {
        f64::from_bits(((1.0f64.to_bits() >> 49) - class as u64) << 49)
    } else {
        f64::MIN_POSITIVE
    }
}

/// Keeps each token whose predecessors in rank order sum to at most `mass`.
fn keep_nucleus(ranked: &mut Vec<(u32, f64)>, mass: f64) {
    let mut before = 0.0;
    let is_outside = |token: &(u32, f64)| {
        let is_outside = before > mass;
        before += token.1;
        is_outside
    };
    let kept = ranked.iter().position(is_outside);
    ranked.truncate(kept.unwrap_or(ranked.len()));
}

/// Orders by descending weight, ties by id.
fn by_rank(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
