//! The sampler of one row: from logits to the next token.
//!
//! The order is SGLang's: frequency and presence penalties, `min_new_tokens`, repetition penalty, grammar mask, logit
//! bias, temperature, then top_k, top_p and min_p **jointly**: each applies to the softmax over the whole vocabulary,
//! without renormalisation between them (SGLang's PyTorch sampler, and FlashInfer's joint filter order). Each keeps a
//! prefix of the same ranking, so the result is the shortest prefix.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::draw::uniform;
use super::filter::{DrawScratch, KeptTokens};
use super::mask::TokenMask;
use super::params::SamplingParams;
use super::peak::Peak;

/// Samples the tokens of one sequence.
///
/// The choice is a pure function of the logits, the parameters, the prompt and the output so far: a sampler rebuilt
/// from prompt and output makes the same choices.
#[derive(Clone, Debug)]
pub struct RowSampler {
    params: Arc<SamplingParams>,
    greedy: bool,
    /// Occurrences of each token in the output; only filled for penalties that read it.
    output_counts: FxHashMap<u32, u32>,
    /// Tokens of prompt and output; only filled for the repetition penalty.
    seen: FxHashSet<u32>,
    /// Tokens excluded before `min_new_tokens`.
    banned_ends: Vec<u32>,
    /// Number of output tokens so far: the position of the next draw.
    output_tokens: u64,
    vocab_size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    pub token: u32,
    /// The logits contained NaN, or every token was excluded: the token is undefined.
    pub nan: bool,
}

impl RowSampler {
    /// Builds the sampler of a sequence after `prompt` and `output` (empty for a new sequence).
    ///
    /// `params` must have passed [`SamplingParams::validate`] with this vocabulary and should carry a seed (default 0).
    /// Neither the `eos_ids` nor the stop token ids are sampled before `min_new_tokens`.
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

    /// Returns whether the next token is the argmax of the raw logits; then use [`RowSampler::sampled_peak`].
    pub fn takes_peak(&self) -> bool {
        self.greedy && !self.changes_logits(None)
    }

    /// Converts the argmax of a whole row to a greedy sampler's choice.
    pub fn sampled_peak(peak: Peak) -> Sampled {
        if peak.nan {
            Sampled {
                token: 0,
                nan: true,
            }
        } else {
            Sampled {
                token: peak.token,
                nan: peak.logit == f32::NEG_INFINITY,
            }
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
        self.choose_ahead(logits, mask, 0, scratch)
    }

    /// As [`Self::choose`], for the token after `ahead` tokens that are not recorded yet. More than 0 only with
    /// [`Self::needs_only_length`].
    #[inline(always)]
    pub fn choose_ahead(
        &self,
        logits: &mut [f32],
        mask: Option<&TokenMask>,
        ahead: u64,
        scratch: &mut DrawScratch,
    ) -> Sampled {
        let logits = &mut logits[..self.vocab_size];
        let mut peak = Peak::of(logits, 0);
        // A mask or a ban could hide a NaN.
        if peak.nan {
            return Self::sampled_peak(peak);
        }
        if self.changes_logits(mask) {
            self.penalize(logits);
            self.constrain(logits, mask);
            peak = Peak::of(logits, 0);
        }
        // With an infinite logit the softmax is undefined; that token gets all the probability.
        if self.greedy || peak.logit.is_infinite() {
            return Self::sampled_peak(peak);
        }
        let kept = KeptTokens::of(logits, peak.logit, &self.params, scratch);
        let seed = self.params.seed();
        Sampled {
            token: kept.pick(uniform(seed, self.output_tokens + ahead)),
            nan: false,
        }
    }

    /// Whether the choices of this and all later tokens depend on the output only by its length, so that several tokens
    /// can be chosen at once.
    pub fn needs_only_length(&self) -> bool {
        !self.params.has_penalty()
            && self.params.logit_bias.is_empty()
            && !self.params.bans_ends(self.output_tokens)
    }

    /// Whether this token ends the output.
    pub fn ends_at(&self, token: u32, eos_ids: &[u32]) -> bool {
        self.params.ends_at(token, eos_ids)
    }

    /// How many tokens the output may still get.
    pub fn remaining_tokens(&self) -> u64 {
        u64::from(self.params.max_new_tokens).saturating_sub(self.output_tokens)
    }

    /// The most query tokens of a step: the last token and its drafts.
    pub fn max_room(&self) -> u32 {
        self.params.speculative_num_draft_tokens.unwrap_or(0)
    }

    /// Records an output token, sampled or chosen by the caller (teacher forcing, speculation).
    pub fn record(&mut self, token: u32) {
        if self.params.has_output_penalty() {
            *self.output_counts.entry(token).or_insert(0) += 1;
        }
        if self.params.has_repetition_penalty() {
            self.seen.insert(token);
        }
        self.output_tokens += 1;
    }

    fn changes_logits(&self, mask: Option<&TokenMask>) -> bool {
        mask.is_some()
            || !self.output_counts.is_empty()
            || !self.seen.is_empty()
            || !self.params.logit_bias.is_empty()
            || self.params.bans_ends(self.output_tokens)
    }

    /// Reserves memory for the output, so that no step allocates.
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
                if *logit > 0.0 {
                    *logit /= params.repetition_penalty
                } else {
                    *logit *= params.repetition_penalty
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

    /// A grammar that allows only end tokens takes precedence over `min_new_tokens`.
    fn bans_ends(&self, mask: Option<&TokenMask>) -> bool {
        self.params.bans_ends(self.output_tokens)
            && mask.is_none_or(|mask| mask.allows_other_than(&self.banned_ends))
    }
}

#[cfg(test)]
mod tests;
