//! The layers with states that a file describes.

use super::keys::Keys;
use crate::error::LoadError;
use crate::kernels::recurrent::{DeltaNetShape, HeadOrder, MAX_TAPS};
use crate::model::config::Architecture;
use crate::model::config::limits::{HEADS, INTERMEDIATE, LAYERS, check_kv_heads};
use crate::model::config::recurrent::{DELTA_DIM, Recurrence, RecurrentConfig, Written};

/// Layers that predict more than one token, after those of the model.
const EXTRA_LAYERS: &str = "nextn_predict_layers";
const KV_HEADS: &str = "attention.head_count_kv";

/// Layers of the model.
pub(super) fn layers(keys: &Keys<'_>) -> Result<usize, LoadError> {
    let all = keys.required("block_count", LAYERS)?;
    let extra = keys.size(EXTRA_LAYERS, 0..=*LAYERS.end())?.unwrap_or(0);
    match all.checked_sub(extra).filter(|layers| *layers > 0) {
        Some(layers) => Ok(layers),
        None => Err(keys.error(EXTRA_LAYERS, format!("is {extra} of {all} layers"))),
    }
}

/// Reads the layers with states of a file.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: Architecture,
    layers: usize,
) -> Result<Option<RecurrentConfig>, LoadError> {
    match architecture {
        Architecture::Lfm2 | Architecture::Lfm2Moe => gated_conv(keys, layers).map(Some),
        Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => {
            delta_net(keys, architecture, layers).map(Some)
        }
        _ => Ok(None),
    }
}

/// The key and value heads of the layers that have some; in a list the others have none.
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
                "is {first} in one layer and {other} in another: all layers with attention must have the same"
            );
            Err(keys.error(KV_HEADS, reason))
        }
    }
}

/// Layers without key heads are convolutions.
fn gated_conv(keys: &Keys<'_>, layers: usize) -> Result<RecurrentConfig, LoadError> {
    let heads = keys
        .metadata
        .integers(&keys.key(KV_HEADS), 0..=*HEADS.end() as i64)?
        .unwrap_or_default();
    if heads.len() != layers {
        let reason = format!(
            "has {} entries, expected one for each of {layers} layers: convert the model again",
            heads.len()
        );
        return Err(keys.error(KV_HEADS, reason));
    }
    Ok(RecurrentConfig {
        layers: heads.into_iter().map(|heads| heads == 0).collect(),
        recurrence: Recurrence::GatedConv {
            n_taps: keys.required("shortconv.l_cache", 2..=MAX_TAPS)?,
            bias: false,
        },
        written: Written::Applied,
        gated_attention: false,
        shared_expert: None,
    })
}

fn delta_net(
    keys: &Keys<'_>,
    architecture: Architecture,
    layers: usize,
) -> Result<RecurrentConfig, LoadError> {
    let interval = keys.size("full_attention_interval", 1..=usize::MAX >> 1)?;
    let interval = interval.unwrap_or(4);
    let by_interval = || (1..=layers).map(|n| !n.is_multiple_of(interval)).collect();
    let key_heads = keys.required("ssm.group_count", HEADS)?;
    let value_heads = keys.required("ssm.time_step_rank", HEADS)?;
    let heads_key = keys.key("ssm.time_step_rank");
    check_kv_heads(key_heads, (&heads_key, value_heads))
        .map_err(|reason| keys.error("ssm.group_count", reason))?;
    let values = keys.required("ssm.inner_size", INTERMEDIATE)?;
    let value_dim = values / value_heads;
    if value_dim * value_heads != values || !DELTA_DIM.contains(&value_dim) {
        let reason = format!(
            "is {values}, expected {value_heads} ({heads_key}) heads of at most {}",
            DELTA_DIM.end()
        );
        return Err(keys.error("ssm.inner_size", reason));
    }
    let shape = DeltaNetShape {
        key_heads,
        value_heads,
        key_dim: keys.required("ssm.state_size", DELTA_DIM)?,
        value_dim,
        n_taps: keys.required("ssm.conv_kernel", 2..=MAX_TAPS)?,
        order: match architecture {
            Architecture::Qwen3Next => HeadOrder::Grouped,
            _ => HeadOrder::Tiled,
        },
    };
    Ok(RecurrentConfig {
        layers: keys
            .flags("attention.recurrent_layers", layers)?
            .unwrap_or_else(by_interval),
        recurrence: Recurrence::DeltaNet {
            shape,
            fused: false,
        },
        written: Written::Applied,
        gated_attention: true,
        shared_expert: match architecture {
            Architecture::Qwen35 => None,
            _ => Some(keys.required("expert_shared_feed_forward_length", INTERMEDIATE)?),
        },
    })
}
