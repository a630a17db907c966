//! Scale factors on activations from GGUF.

use super::keys::{
    EMBEDDING_SCALE, Keys, LOGITS_DIVISOR, QUERY_SLOPE, RESIDUAL_SCALE, SCORE_SCALE,
};
use crate::config::limits::CONTEXT;
use crate::config::scales::{FACTORS, SLOPES, Scales, unless_one};
use souffleur_base::error::LoadError;
use souffleur_kernels::rope::PositionScale;

/// Reads the keys in `named`. Zero means no factor, as in llama.cpp.
pub(super) fn read(
    keys: &Keys<'_>,
    named: &[&str],
    max_positions: usize,
) -> Result<Scales, LoadError> {
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
        embedding: factor(EMBEDDING_SCALE)?,
        residual: factor(RESIDUAL_SCALE)?,
        scores: number(SCORE_SCALE, &FACTORS)?.map(|scale| scale as f32),
        logits_divisor: factor(LOGITS_DIVISOR)?,
        queries: number(QUERY_SLOPE, &SLOPES)?.map(|slope| PositionScale {
            slope: slope as f32,
            period,
        }),
    })
}
