//! One row's sampler: from logits to the next token.
//!
//! The order is SGLang's: frequency and presence penalties, `min_new_tokens`, repetition penalty, grammar mask,
//! logit bias, temperature, then top_k, top_p and min_p **jointly**: each looks at the softmax over the whole
//! vocabulary, none renormalises for the next (SGLang's PyTorch sampler, and FlashInfer's joint filter order). All
//! three keep a prefix of the same ranking, so what is kept is the shortest of the three prefixes.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::draw::uniform;
use super::filter::Kept;
use super::mask::TokenMask;
use super::params::SamplingParams;

/// Chooses the tokens of one sequence.
///
/// What it chooses is a pure function of the logits, the parameters, the prompt and the output so far: a sampler
/// rebuilt from prompt and output goes on exactly as the first one would have.
#[derive(Clone, Debug)]
pub struct RowSampler {
    params: Arc<SamplingParams>,
    greedy: bool,
    /// How often each token occurs in the output; filled only if a penalty reads it.
    output_counts: FxHashMap<u32, u32>,
    /// Tokens of prompt and output; filled only if the repetition penalty reads it.
    seen: FxHashSet<u32>,
    /// Tokens that may not be sampled before `min_new_tokens`.
    banned_early: Vec<u32>,
    /// Tokens of output so far: the position of the next draw.
    output_tokens: u64,
    vocab_size: usize,
}

/// What a sampler chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// The logits held a NaN, or every token was ruled out: the token means nothing.
    pub nan: bool,
}

impl RowSampler {
    /// Builds the sampler of a sequence that stands after `prompt` and `output` (empty for a new sequence).
    ///
    /// `params` must have passed [`SamplingParams::validate`] with this vocabulary and should carry a seed (0 is
    /// taken otherwise). Neither the `eos_ids` nor the stop token ids are sampled before `min_new_tokens`.
    pub fn new(
        params: Arc<SamplingParams>,
        vocab_size: usize,
        eos_ids: &[u32],
        prompt: &[u32],
        output: &[u32],
    ) -> Self {
        let mut banned_early = Vec::new();
        if params.min_new_tokens > 0 {
            banned_early.extend(eos_ids.iter().chain(&params.stop_token_ids));
            banned_early.retain(|&token| (token as usize) < vocab_size);
            banned_early.sort_unstable();
            banned_early.dedup();
        }
        let mut sampler = Self {
            greedy: params.is_greedy(),
            output_counts: FxHashMap::default(),
            seen: FxHashSet::default(),
            banned_early,
            output_tokens: 0,
            vocab_size,
            params,
        };
        if sampler.repeats_matter() {
            sampler.seen.extend(prompt);
        }
        for &token in output {
            sampler.record(token);
        }
        sampler
    }

    /// Chooses the next token and counts it as output. `logits` are changed in place.
    ///
    /// # Shapes
    /// `logits: [vocab_size]`.
    /// # Panics
    /// If `logits` is shorter than the vocabulary (caller bug).
    pub fn sample(&mut self, logits: &mut [f32], mask: Option<&TokenMask>) -> Sampled {
        let logits = &mut logits[..self.vocab_size];
        let sampled = self.choose(logits, mask);
        self.record(sampled.token);
        sampled
    }

    /// Counts a token that was not sampled here (teacher forcing, speculation) as output.
    pub fn record(&mut self, token: u32) {
        if self.params.frequency_penalty != 0.0 || self.params.presence_penalty != 0.0 {
            *self.output_counts.entry(token).or_insert(0) += 1;
        }
        if self.repeats_matter() {
            self.seen.insert(token);
        }
        self.output_tokens += 1;
    }

    fn choose(&self, logits: &mut [f32], mask: Option<&TokenMask>) -> Sampled {
        if logits.iter().any(|logit| logit.is_nan()) {
            return Sampled {
                token: 0,
                nan: true,
            };
        }
        self.penalize(logits);
        self.constrain(logits, mask);
        let (best, max) = argmax(logits);
        // An infinite logit has all the probability, and the softmax cannot be computed.
        if self.greedy || max.is_infinite() {
            return Sampled {
                token: best,
                nan: max == f32::NEG_INFINITY,
            };
        }
        let kept = Kept::of(logits, max, &self.params);
        let seed = self.params.sampling_seed.unwrap_or(0);
        Sampled {
            token: kept.pick(uniform(seed, self.output_tokens)),
            nan: false,
        }
    }

    fn penalize(&self, logits: &mut [f32]) {
        let params = &*self.params;
        for (&token, &count) in &self.output_counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= params.frequency_penalty * count as f32;
                *logit -= params.presence_penalty;
            }
        }
        for &token in &self.seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                match *logit > 0.0 {
                    true => *logit /= params.repetition_penalty,
                    false => *logit *= params.repetition_penalty,
                }
            }
        }
    }

    fn constrain(&self, logits: &mut [f32], mask: Option<&TokenMask>) {
        if let Some(mask) = mask {
            mask.apply(logits);
        }
        if self.output_tokens < u64::from(self.params.min_new_tokens) && self.may_ban(mask) {
            for &token in &self.banned_early {
                logits[token as usize] = f32::NEG_INFINITY;
            }
        }
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
    }

    /// A grammar that allows nothing but ends of the sequence is at its end: then it goes before `min_new_tokens`.
    fn may_ban(&self, mask: Option<&TokenMask>) -> bool {
        mask.is_none_or(|mask| {
            let banned = self
                .banned_early
                .iter()
                .filter(|&&token| mask.allows(token));
            mask.allowed_tokens() > banned.count()
        })
    }

    fn repeats_matter(&self) -> bool {
        self.params.repetition_penalty != 1.0
    }
}

/// Returns the most likely token (the lowest id of equals) and its logit.
fn argmax(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (token as u32, logit);
        }
    }
    best
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
