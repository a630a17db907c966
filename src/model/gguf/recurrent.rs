//! Reads from GGUF the number of layers, and the KV heads of a hybrid's attention layers.

use super::keys::{KV_HEADS, Keys};
use crate::config::limits::{HEADS, LAYERS};
use souffleur_base::error::LoadError;

/// Number of multi-token prediction (MTP) layers, which follow the decoder's layers.
const EXTRA_LAYERS: &str = "nextn_predict_layers";

/// Number of layers without MTP.
pub(super) fn layers(keys: &Keys<'_>) -> Result<usize, LoadError> {
    let all = keys.required("block_count", LAYERS)?;
    let extra = keys.size(EXTRA_LAYERS, 0..=*LAYERS.end())?.unwrap_or(0);
    match all.checked_sub(extra).filter(|layers| *layers > 0) {
        Some(layers) => Ok(layers),
        None => Err(keys.error(
            EXTRA_LAYERS,
            format!("is {extra}, expected fewer than the {all} layers: convert the model again"),
        )),
    }
}

/// KV heads of the attention layers; a list has 0 for the other layers.
pub(super) fn kv_heads(keys: &Keys<'_>) -> Result<Option<usize>, LoadError> {
    let key = keys.key(KV_HEADS);
    if !keys.metadata.is_list(&key) {
        return keys.size(KV_HEADS, HEADS);
    }
    let heads = keys.metadata.integers(&key, 0..=*HEADS.end() as i64)?;
    let mut heads: Vec<i64> = heads.unwrap_or_default();
    heads.retain(|heads| *heads > 0);
    heads.dedup();
    match heads.as_slice() {
        [] => Ok(None),
        [same] => Ok(Some(*same as usize)),
        [first, other, ..] => {
            let reason = format!(
                "is {first} in one layer and {other} in another: all layers with attention must have the same number"
            );
            Err(keys.error(KV_HEADS, reason))
        }
    }
}
