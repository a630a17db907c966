//! Sampling parameters with SGLang's names and defaults.

use std::sync::Arc;

use serde::Serialize;

use super::rules::GREEDY_TEMPERATURE;
use crate::detok::TextOptions;
use crate::request_limits::RequestLimits;
use crate::speculation::MAX_ROOM;
use souffleur_base::error::{FieldError, Plain, RequestError};
use souffleur_base::field::{check_bytes, check_count};

/// Sampling and stopping parameters, with SGLang's names and defaults.
///
/// The JSON form accepts SGLang's `sampling_params`: every field may be missing or null (the default), `stop` may be
/// one string, `logit_bias` is a map from token id to bias. Clones share the lists.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SamplingParams {
    pub max_new_tokens: u32,
    /// Number of tokens before which neither EOS nor a stop token can be sampled.
    pub min_new_tokens: u32,
    /// Strings that end the output. In JSON an empty one is ignored, as in OpenAI's API.
    pub stop: Arc<[String]>,
    /// Tokens that end the output, in addition to EOS.
    pub stop_token_ids: Arc<[u32]>,
    /// Softmax temperature; below 1e-6 sampling is greedy.
    pub temperature: f32,
    /// Nucleus sampling: kept probability mass, in [0, 1]; 0 keeps the most likely token.
    pub top_p: f32,
    /// Number of most likely tokens kept; -1 or 0 keeps all.
    pub top_k: i32,
    /// Tokens less likely than `min_p` times the most likely one are dropped, in [0, 1].
    pub min_p: f32,
    /// Subtracted once per earlier occurrence in the output, in [-2, 2].
    pub frequency_penalty: f32,
    /// Subtracted if the token occurs in the output, in [-2, 2].
    pub presence_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output, in (0, 2].
    pub repetition_penalty: f32,
    /// Added to the logits of single tokens: (token id, bias).
    #[serde(serialize_with = "super::wire::serialize_logit_bias")]
    pub logit_bias: Arc<[(u32, f32)]>,
    pub ignore_eos: bool,
    /// Seed of the draws; intake chooses a random one if absent.
    pub sampling_seed: Option<u64>,
    /// Number of samples of one prompt.
    pub n: u32,
    pub skip_special_tokens: bool,
    /// Puts spaces between special tokens in the text.
    pub spaces_between_special_tokens: bool,
    pub no_stop_trim: bool,
    /// The most query tokens of the output's rows in a step, in SGLang's sense: the last token and its drafts. 0 and 1:
    /// no drafts. Intake replaces `None` by the engine's value, and lowers it where drafts are not possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_num_draft_tokens: Option<u32>,
}

impl From<&SamplingParams> for TextOptions {
    fn from(params: &SamplingParams) -> Self {
        Self {
            skip_special_tokens: params.skip_special_tokens,
            spaces_between_special_tokens: params.spaces_between_special_tokens,
            no_stop_trim: params.no_stop_trim,
        }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            min_new_tokens: 0,
            stop: Arc::default(),
            stop_token_ids: Arc::default(),
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Arc::default(),
            ignore_eos: false,
            sampling_seed: None,
            n: 1,
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            no_stop_trim: false,
            speculative_num_draft_tokens: None,
        }
    }
}

pub const MAX_SAMPLES: u32 = 128;
/// The units in length errors of `stop`, `stop_token_ids` and `logit_bias`.
pub(super) const STOP_UNIT: &str = "strings";
pub(super) const STOP_TOKEN_UNIT: &str = "ids";
pub(super) const BIAS_UNIT: &str = "tokens";

impl SamplingParams {
    /// Replaces a temperature below 1e-6 as SGLang does: temperature 1, top_k 1.
    pub fn normalized(mut self) -> Self {
        if self.temperature < GREEDY_TEMPERATURE {
            self.temperature = 1.0;
            self.top_k = 1;
        }
        self
    }

    /// # Errors
    /// [`RequestError::Field`] with the name, the value, the limit and a remedy.
    pub fn validate(&self, vocab_size: usize, limits: &RequestLimits) -> Result<(), RequestError> {
        Ok(self.check(vocab_size, limits)?)
    }

    fn check(&self, vocab_size: usize, limits: &RequestLimits) -> Result<(), FieldError> {
        self.check_numbers()?;
        self.check_stop(limits)?;
        let biases = self.logit_bias.len();
        check_count("logit_bias", biases, limits.max_logit_bias, BIAS_UNIT)?;
        check_ids(
            "stop_token_ids",
            self.stop_token_ids.iter().copied(),
            vocab_size,
        )?;
        check_ids(
            "logit_bias",
            self.logit_bias.iter().map(|bias| bias.0),
            vocab_size,
        )?;
        for (token, bias) in self.logit_bias.iter() {
            if !bias.is_finite() {
                return refuse(
                    "logit_bias",
                    format!(
                        "logit_bias of token {token} is {bias}, must be a finite number: use -100 to rule a token out"
                    ),
                );
            }
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), FieldError> {
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return refuse(
                "temperature",
                format!(
                    "temperature is {}, must be a finite number of at least 0: use 0 for the most likely token",
                    Plain(self.temperature)
                ),
            );
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return refuse(
                "top_p",
                format!(
                    "top_p is {}, must be in [0, 1]: use 1 to keep all tokens, 0 for the most likely one",
                    Plain(self.top_p)
                ),
            );
        }
        if self.top_k < -1 {
            return refuse(
                "top_k",
                format!(
                    "top_k is {}, must be at least -1: use 0 or -1 to keep all tokens",
                    self.top_k
                ),
            );
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse(
                "min_p",
                format!(
                    "min_p is {}, must be in [0, 1]: use 0 to keep all tokens",
                    Plain(self.min_p)
                ),
            );
        }
        self.check_penalties()?;
        self.check_lengths("min_new_tokens", "max_new_tokens")?;
        if self.n == 0 || self.n > MAX_SAMPLES {
            return refuse(
                "n",
                format!(
                    "n is {}, limits are 1 to {MAX_SAMPLES}: send several requests for more samples",
                    self.n
                ),
            );
        }
        match self.speculative_num_draft_tokens {
            Some(n) if n > MAX_ROOM => refuse(
                "speculative_num_draft_tokens",
                format!(
                    "speculative_num_draft_tokens is {n}, limit is {MAX_ROOM}: use 0 for no drafts"
                ),
            ),
            _ => Ok(()),
        }
    }

    fn check_penalties(&self) -> Result<(), FieldError> {
        for (name, value) in [
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ] {
            if !(-2.0..=2.0).contains(&value) {
                return refuse(
                    name,
                    format!(
                        "{name} is {}, must be in [-2, 2]: use 0 for none",
                        Plain(value)
                    ),
                );
            }
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= 2.0) {
            return refuse(
                "repetition_penalty",
                format!(
                    "repetition_penalty is {}, must be in (0, 2]: use 1 for none",
                    Plain(self.repetition_penalty)
                ),
            );
        }
        Ok(())
    }

    /// Rejects a minimum above the maximum of new tokens, under the endpoint's names for both.
    pub fn check_lengths(&self, min_name: &str, max_name: &str) -> Result<(), FieldError> {
        let (min, max) = (self.min_new_tokens, self.max_new_tokens);
        if min <= max {
            Ok(())
        } else {
            refuse(
                min_name,
                format!(
                    "{min_name} is {min}, must be at most {max_name} ({max}): lower one or raise the other"
                ),
            )
        }
    }

    fn check_stop(&self, limits: &RequestLimits) -> Result<(), FieldError> {
        check_count("stop", self.stop.len(), limits.max_stop_strings, STOP_UNIT)?;
        for (index, stop) in self.stop.iter().enumerate() {
            let name = format!("stop[{index}]");
            if stop.is_empty() {
                let text = format!("{name} is empty, must have at least 1 byte: leave it out");
                return refuse("stop", text);
            }
            check_bytes(&name, stop, limits.max_stop_bytes)
                .map_err(|error| error.within("stop"))?;
        }
        let (ids, limit) = (self.stop_token_ids.len(), limits.max_stop_token_ids);
        check_count("stop_token_ids", ids, limit, STOP_TOKEN_UNIT)
    }
}

fn check_ids(
    name: &str,
    mut ids: impl Iterator<Item = u32>,
    vocab_size: usize,
) -> Result<(), FieldError> {
    match ids.find(|&id| id as usize >= vocab_size) {
        Some(id) => refuse(
            name,
            format!(
                "{name} contains token id {id}, but the vocabulary has {vocab_size} tokens: use ids below {vocab_size}"
            ),
        ),
        None => Ok(()),
    }
}

fn refuse(field: &str, reason: String) -> Result<(), FieldError> {
    Err(FieldError::new(field, reason))
}

#[cfg(test)]
mod tests;
