//! One row's sampler: from logits to the next token.
//!
//! The order is SGLang's: frequency and presence penalties, `min_new_tokens`, repetition penalty, grammar mask,
//! logit bias, temperature, then top_k, top_p and min_p **jointly**: each looks at the softmax over the whole
//! vocabulary, none renormalises for the next (SGLang's PyTorch sampler, and FlashInfer's joint filter order). All
//! three keep a prefix of the same ranking, so what is kept is the shortest of the three prefixes.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::draw::uniform;
use super::filter::{DrawScratch, Kept};
use super::mask::TokenMask;
use super::params::SamplingParams;
use super::peak::Peak;

/// Chooses the tokens of one sequence.
///
/// Its choice is a pure function of the logits, the parameters, the prompt and the output so far: a sampler
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
    banned_ends: Vec<u32>,
    /// Tokens of output so far: the position of the next draw.
    output_tokens: u64,
    vocab_size: usize,
}

/// The choice of a sampler.
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
        let mut sampler = Self {
            greedy: params.is_greedy(),
            output_counts: FxHashMap::default(),
            seen: FxHashSet::default(),
            banned_ends: params.banned_ends(eos_ids, vocab_size),
            output_tokens: 0,
            vocab_size,
            params,
        };
        sampler.reserve(prompt.len());
        if sampler.params.has_repetition_penalty() {
            sampler.seen.extend(prompt);
        }
        for &token in output {
            sampler.record(token);
        }
        sampler
    }

    /// Returns whether the next token is the peak of the raw logits, which [`RowSampler::sampled_peak`] takes.
    pub fn takes_peak(&self) -> bool {
        self.greedy && !self.edits(None)
    }

    /// Returns what the peak of a whole row of logits means for a sampler that takes it.
    pub fn sampled_peak(peak: Peak) -> Sampled {
        match peak.nan {
            true => Sampled {
                token: 0,
                nan: true,
            },
            false => Sampled {
                token: peak.token,
                nan: peak.logit == f32::NEG_INFINITY,
            },
        }
    }

    /// Chooses the next token; [`RowSampler::record`] then counts it as output. `logits` are changed in place.
    ///
    /// # Shapes
    /// `logits: [vocab_size]`.
    /// # Panics
    /// If `logits` is shorter than the vocabulary (caller bug).
    #[inline(always)]
    pub fn choose(
        &self,
        logits: &mut [f32],
        mask: Option<&TokenMask>,
        scratch: &mut DrawScratch,
    ) -> Sampled {
        let logits = &mut logits[..self.vocab_size];
        let mut peak = Peak::of(logits, 0);
        // A mask or a ban could hide it.
        if peak.nan {
            return Self::sampled_peak(peak);
        }
        if self.edits(mask) {
            self.penalize(logits);
            self.constrain(logits, mask);
            peak = Peak::of(logits, 0);
        }
        // An infinite logit has all the probability, and the softmax cannot be computed.
        if self.greedy || peak.logit.is_infinite() {
            return Self::sampled_peak(peak);
        }
        let kept = Kept::of(logits, peak.logit, &self.params, scratch);
        let seed = self.params.seed();
        Sampled {
            token: kept.pick(uniform(seed, self.output_tokens)),
            nan: false,
        }
    }

    /// Counts a token as output: one that was chosen, or comes from elsewhere (teacher forcing, speculation).
    pub fn record(&mut self, token: u32) {
        if self.params.has_output_penalty() {
            *self.output_counts.entry(token).or_insert(0) += 1;
        }
        if self.params.has_repetition_penalty() {
            self.seen.insert(token);
        }
        self.output_tokens += 1;
    }

    /// Something changes the logits before they are ranked.
    fn edits(&self, mask: Option<&TokenMask>) -> bool {
        mask.is_some()
            || !self.output_counts.is_empty()
            || !self.seen.is_empty()
            || !self.params.logit_bias.is_empty()
            || self.params.bans_ends(self.output_tokens)
    }

    /// Makes room for what the output will add, so that no step has to.
    fn reserve(&mut self, prompt_tokens: usize) {
        let output_tokens = (self.params.max_new_tokens as usize).min(self.vocab_size);
        if self.params.has_output_penalty() {
            self.output_counts.reserve(output_tokens);
        }
        if self.params.has_repetition_penalty() {
            let tokens = (prompt_tokens + output_tokens).min(self.vocab_size);
            self.seen.reserve(tokens);
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
        if self.bans_ends(mask) {
            for &token in &self.banned_ends {
                logits[token as usize] = f32::NEG_INFINITY;
            }
        }
        for &(token, bias) in self.params.logit_bias.iter() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
    }

    /// A grammar that allows nothing but ends of the sequence is at its end: then it goes before `min_new_tokens`.
    fn bans_ends(&self, mask: Option<&TokenMask>) -> bool {
        self.params.bans_ends(self.output_tokens)
            && mask.is_none_or(|mask| mask.allows_beside(&self.banned_ends))
    }
}

#[cfg(test)]
mod tests;
