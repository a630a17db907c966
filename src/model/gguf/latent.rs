//! Latent attention (MLA) configuration from GGUF.

use super::Gguf;
use super::keys::Keys;
use crate::config::latent::LatentConfig;
use crate::config::limits::{HEAD_DIM, HIDDEN, check_head_dim};
use souffleur_base::error::LoadError;

/// Newer files have separate up projections to keys and to values. In these files, metadata keys with `_mla` are sizes
/// of a head, and keys without `_mla` are sizes stored per token.
pub(super) fn latent(gguf: &Gguf, keys: &Keys<'_>) -> Result<LatentConfig, LoadError> {
    let split = gguf.tensor("blk.0.attn_k_b.weight").is_some();
    let head = |name: &str| -> Result<usize, LoadError> {
        match keys.size(&format!("attention.{name}_mla"), HEAD_DIM)? {
            Some(size) => Ok(size),
            None => keys.required(&format!("attention.{name}"), HEAD_DIM),
        }
    };
    let rotary_dim = keys.required("rope.dimension_count", HEAD_DIM)?;
    check_head_dim(rotary_dim).map_err(|reason| keys.error("rope.dimension_count", reason))?;
    let query_dim = head("key_length")?;
    let plain_dim = query_dim.checked_sub(rotary_dim).filter(|dim| *dim > 0);
    let plain_dim = plain_dim.ok_or_else(|| {
        let reason =
            format!("is {rotary_dim}, expected less than {query_dim}, the size of a head's key");
        keys.error("rope.dimension_count", reason)
    })?;
    Ok(LatentConfig {
        query_rank: keys.size("attention.q_lora_rank", HIDDEN)?,
        rank: keys.required("attention.kv_lora_rank", HEAD_DIM)?,
        plain_dim,
        rotary_dim,
        value_dim: head("value_length")?,
        eps: 1e-6,
        interleaved: true,
        split,
    })
}
