//! Sampling parameters under llama.cpp's names, as its answers and properties show them.

use serde_json::{Value, json};

use crate::openapi::facts::by_name;
use souffleur_engine::ModelInfo;
use souffleur_state::sampling::SamplingParams;

/// The most tokens that a prompt and its output have together.
pub(super) fn context_tokens(model: &ModelInfo) -> usize {
    model.context_length.min(model.max_total_tokens)
}

pub(super) fn of_sampling(sampling: &SamplingParams) -> Value {
    let named = by_name(sampling);
    let longest = match sampling.max_new_tokens {
        u32::MAX => -1,
        longest => i64::from(longest),
    };
    let seed = sampling.sampling_seed.map_or(json!(-1), Value::from);
    json!({
        "seed": seed,
        "temperature": named["temperature"],
        "top_k": named["top_k"],
        "top_p": named["top_p"],
        "min_p": named["min_p"],
        "repeat_penalty": named["repetition_penalty"],
        "presence_penalty": named["presence_penalty"],
        "frequency_penalty": named["frequency_penalty"],
        "stop": named["stop"],
        "max_tokens": longest,
        "n_predict": longest,
        "ignore_eos": sampling.ignore_eos,
        "n_probs": 0,
    })
}
