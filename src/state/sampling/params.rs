//! Sampling parameters with SGLang's names and defaults.

use serde::{Deserialize, Serialize};

/// How tokens are chosen and when a request ends. Names and defaults are SGLang's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Most tokens to generate.
    pub max_new_tokens: u32,
    /// Tokens before which neither EOS nor a stop token can be sampled.
    pub min_new_tokens: u32,
    /// Strings that end the output; at most 32.
    pub stop: Vec<String>,
    /// Tokens that end the output, besides EOS.
    pub stop_token_ids: Vec<u32>,
    /// Softmax temperature; below 1e-6 the most likely token is taken.
    pub temperature: f32,
    /// Nucleus: least probability mass kept, in (0, 1].
    pub top_p: f32,
    /// Most likely tokens kept; -1 keeps all.
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
    pub logit_bias: Vec<(u32, f32)>,
    /// Goes on after EOS.
    pub ignore_eos: bool,
    /// Seed of the draws; a random one is chosen at intake when absent.
    pub sampling_seed: Option<u64>,
    /// Number of samples of one prompt.
    pub n: u32,
    /// Leaves special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Puts spaces between special tokens of the text.
    pub spaces_between_special_tokens: bool,
    /// Keeps the stop string or stop token in the output.
    pub no_stop_trim: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            min_new_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            ignore_eos: false,
            sampling_seed: None,
            n: 1,
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            no_stop_trim: false,
        }
    }
}
