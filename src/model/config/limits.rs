//! Limits of model sizes for all file formats, and the constraints between sizes.
//!
//! Error texts continue a sentence that begins with the key's name.

use std::ops::RangeInclusive;

use crate::rope::MAX_POSITIONS;

pub(crate) const VOCAB: RangeInclusive<usize> = 1..=1 << 24;
pub(crate) const HIDDEN: RangeInclusive<usize> = 1..=1 << 17;
pub(crate) const INTERMEDIATE: RangeInclusive<usize> = 1..=1 << 20;
pub(crate) const EXPERTS: RangeInclusive<usize> = 1..=1 << 10;
/// Experts of all layers together.
const MAX_EXPERTS: usize = 1 << 16;
pub(crate) const LAYERS: RangeInclusive<usize> = 1..=1 << 10;
pub(crate) const HEADS: RangeInclusive<usize> = 1..=1 << 12;
pub(crate) const HEAD_DIM: RangeInclusive<usize> = 2..=1 << 12;
pub(crate) const CONTEXT: RangeInclusive<usize> = 1..=MAX_POSITIONS;

/// Limits of a scale or softcap.
pub(crate) const FACTORS: RangeInclusive<f64> = 1e-6..=1e6;

/// `heads` is the number of query heads, with the name of its key.
pub(crate) fn check_kv_heads(kv_heads: usize, heads: (&str, usize)) -> Result<(), String> {
    let (key, heads) = heads;
    if heads.is_multiple_of(kv_heads) {
        Ok(())
    } else {
        Err(format!("is {kv_heads} and does not divide {key}, {heads}"))
    }
}

/// The hidden size divided by the number of query heads. `heads` is that number, with the name of its key.
pub(crate) fn default_head_dim(hidden: usize, heads: (&str, usize)) -> Result<usize, String> {
    let (key, heads) = heads;
    if hidden.is_multiple_of(heads) {
        Ok(hidden / heads)
    } else {
        Err(format!("is {hidden} and not a multiple of {key}, {heads}"))
    }
}

/// Head sizes are even because RoPE rotates pairs of elements.
pub(crate) fn check_head_dim(head_dim: usize) -> Result<(), String> {
    if head_dim.is_multiple_of(2) && HEAD_DIM.contains(&head_dim) {
        Ok(())
    } else {
        Err(format!(
            "is {head_dim}, expected an even number from 2 to {}",
            HEAD_DIM.end()
        ))
    }
}

/// Checks that a layer has at least `used` experts, and all layers together at most [`MAX_EXPERTS`]. `experts` is the
/// number of experts per layer. Both come with their keys; the error has the wrong one.
pub(crate) fn check_experts<'a>(
    (used_key, used): (&'a str, usize),
    (key, experts): (&'a str, usize),
    layers: usize,
) -> Result<(), (&'a str, String)> {
    if used > experts {
        return Err((used_key, format!("is {used}, more than {key}, {experts}")));
    }
    if layers * experts <= MAX_EXPERTS {
        Ok(())
    } else {
        let reason = format!(
            "is {experts} in each of {layers} layers, the limit is {MAX_EXPERTS} experts in all layers together"
        );
        Err((key, reason))
    }
}
