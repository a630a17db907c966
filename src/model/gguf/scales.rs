//! Numbers that some families multiply their activations with, as files have them.

use super::keys::Keys;
use crate::error::LoadError;
use crate::kernels::rope::PositionScale;
use crate::model::config::Architecture;
use crate::model::config::limits::CONTEXT;
use crate::model::config::scales::{FACTORS, SLOPES, Scales, unless_one};

const SCORES: &str = "attention.scale";
const EMBEDDING: &str = "embedding_scale";
const RESIDUAL: &str = "residual_scale";
const LOGITS: &str = "logit_scale";
const QUERIES: &str = "attention.temperature_scale";

/// The keys of an architecture that say them; others must not change anything.
pub(super) fn keys_of(architecture: Architecture) -> &'static [&'static str] {
    match architecture {
        Architecture::Granite => &[SCORES, EMBEDDING, RESIDUAL, LOGITS],
        Architecture::Ministral3 => &[QUERIES],
        _ => &[],
    }
}

/// Reads the factors. Zero means that there is none, as in llama.cpp.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: Architecture,
    max_positions: usize,
) -> Result<Scales, LoadError> {
    let named = keys_of(architecture);
    let number = |name, limits: &std::ops::RangeInclusive<f64>| {
        let zero = 0.0..=*limits.end();
        let read = if named.contains(&name) {
            keys.number(name, zero)?.filter(|number| *number != 0.0)
        } else {
            None
        };
        match read.filter(|number| !limits.contains(number)) {
            None => Ok(read),
            Some(small) => {
                let reason = format!("is {small}, expected 0 or at least {}", limits.start());
                Err(keys.error(name, reason))
            }
        }
    };
    let factor = |name| Ok(number(name, &FACTORS)?.and_then(unless_one));
    let original = keys.size("rope.scaling.original_context_length", CONTEXT)?;
    let period = original.unwrap_or(max_positions) as u32;
    Ok(Scales {
        embedding: factor(EMBEDDING)?,
        residual: factor(RESIDUAL)?,
        scores: number(SCORES, &FACTORS)?.map(|scale| scale as f32),
        logits_divisor: factor(LOGITS)?,
        queries: number(QUERIES, &SLOPES)?.map(|slope| PositionScale {
            slope: slope as f32,
            period,
        }),
    })
}
