//! Configuration of latent attention (MLA).

use super::limits::{HEAD_DIM, HIDDEN, check_head_dim};
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;
use souffleur_kernels::tensor_view::RowOrder;

#[derive(Clone, Debug, PartialEq)]
pub struct LatentConfig {
    /// Rank of low-rank queries; `None` if queries are projected directly.
    pub query_rank: Option<usize>,
    pub rank: usize,
    /// Unrotated elements of a query and of a key.
    pub plain_dim: usize,
    /// Rotated elements of a query and of a key, even.
    pub rotary_dim: usize,
    pub value_dim: usize,
    /// Epsilon of the norms of latents and low-rank queries.
    pub eps: f32,
    /// Whether checkpoints interleave the rows of a rotated pair.
    pub interleaved: bool,
    /// Whether checkpoints have separate up projections to keys (transposed) and to values.
    pub split: bool,
}

pub(crate) struct LatentDefaults {
    pub query_rank: usize,
    pub plain_dim: usize,
    pub value_dim: usize,
    /// Whether rows of a rotated pair are interleaved; `None` reads `rope_interleave`.
    pub interleaved: Option<bool>,
}

impl LatentConfig {
    pub(super) fn from_json(json: &JsonFile, defaults: &LatentDefaults) -> Result<Self, LoadError> {
        let size = |key, default: usize| Ok(json.size(key, HEAD_DIM)?.unwrap_or(default));
        let default_rank = Some(defaults.query_rank).filter(|_| !json.has("q_lora_rank"));
        let latent = Self {
            query_rank: json.size("q_lora_rank", HIDDEN)?.or(default_rank),
            rank: size("kv_lora_rank", 512)?,
            plain_dim: size("qk_nope_head_dim", defaults.plain_dim)?,
            rotary_dim: size("qk_rope_head_dim", 64)?,
            value_dim: size("v_head_dim", defaults.value_dim)?,
            eps: 1e-6,
            interleaved: match defaults.interleaved {
                Some(interleaved) => interleaved,
                None => json.flag_or_null("rope_interleave", true)?,
            },
            split: false,
        };
        check_head_dim(latent.rotary_dim)
            .map_err(|reason| json.error("qk_rope_head_dim", reason))?;
        Ok(latent)
    }

    /// Elements stored per token: the latent vector and the rotated key.
    pub fn key_dim(&self) -> usize {
        self.rank + self.rotary_dim
    }

    pub fn query_dim(&self) -> usize {
        self.plain_dim + self.rotary_dim
    }

    /// The order of a tensor's rows in checkpoints.
    pub(super) fn row_order(&self, tensor: &str) -> RowOrder {
        let pairs = |head_dim| RowOrder::Pairs {
            head_dim,
            rotary_dim: self.rotary_dim,
        };
        let is = |part: &str| tensor.contains(&format!(".self_attn.{part}."));
        match self.interleaved {
            true if is("q_proj") || is("q_b_proj") => pairs(self.query_dim()),
            true if is("kv_a_proj_with_mqa") => pairs(self.key_dim()),
            _ => RowOrder::AsNumbered,
        }
    }
}
