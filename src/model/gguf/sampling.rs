//! Sampling defaults from GGUF metadata, the counterpart of `generation_config.json`.

use std::ops::RangeInclusive;

use crate::generation::{GenerationConfig, MIN_P, PENALTY, TEMPERATURE, TOP_P, top_k_or_unlimited};
use souffleur_base::error::LoadError;
use souffleur_gguf::Metadata;

/// Reads `general.sampling.*`, which converters write from `generation_config.json`. Unsupported samplers (XTC,
/// Mirostat, sampler order) are ignored: they are preferences, not part of the model.
pub(super) fn defaults(metadata: Metadata<'_>) -> Result<GenerationConfig, LoadError> {
    let read = |name: &str, limits: RangeInclusive<f64>| {
        metadata.number(&format!("general.sampling.{name}"), limits)
    };
    let number = |name: &str, limits: RangeInclusive<f64>| -> Result<Option<f32>, LoadError> {
        Ok(read(name, limits)?.map(|number| number as f32))
    };
    let top_k = read("top_k", f64::from(i32::MIN)..=f64::from(i32::MAX))?;
    let penalized = read("penalty_last_n", f64::from(i32::MIN)..=f64::from(i32::MAX))?;
    let penalty = number("penalty_repeat", PENALTY)?;
    Ok(GenerationConfig {
        // GGUF files have EOS tokens among the tokenizer's keys.
        eos_token_ids: None,
        temperature: number("temp", TEMPERATURE)?,
        top_p: number("top_p", TOP_P)?,
        top_k: top_k.map(top_k_or_unlimited),
        min_p: number("min_p", MIN_P)?,
        // A penalty on the last 0 tokens has no effect.
        repetition_penalty: penalty.filter(|_| penalized != Some(0.0)),
    })
}
