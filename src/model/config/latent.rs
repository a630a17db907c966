//! Latent attention as configured.

use super::limits::{HEAD_DIM, HIDDEN, check_head_dim};
use crate::error::LoadError;
use crate::kernels::tensor_view::RowOrder;
use crate::model::json_file::JsonFile;

/// The shape of latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentConfig {
    /// Elements of the vector that queries are made of; `None` where they are projected at once.
    pub query_rank: Option<usize>,
    /// Elements of a latent.
    pub rank: usize,
    /// Elements of a query and of a key that positions do not rotate.
    pub plain_dim: usize,
    /// Elements of them that are rotated, even.
    pub rotary_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Added to the mean square in the norms of latents and low-rank queries.
    pub eps: f32,
    /// Checkpoints interleave the rows of a rotated pair.
    pub interleaved: bool,
    /// Checkpoints have separate up projections from latents to keys and to values, the former transposed.
    pub split: bool,
}

/// Sizes that a family's `config.json` leaves out.
pub(crate) struct LatentDefaults {
    /// Elements of the vector that queries are made of.
    pub query_rank: usize,
    /// Elements of a query and of a key that positions do not rotate.
    pub plain_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether rows of a rotated pair are interleaved; `None` where `rope_interleave` says it.
    pub interleaved: Option<bool>,
}

impl LatentConfig {
    pub(super) fn from_json(json: &JsonFile, defaults: &LatentDefaults) -> Result<Self, LoadError> {
        let size = |key, default: usize| Ok(json.size(key, HEAD_DIM)?.unwrap_or(default));
        let unless_null = Some(defaults.query_rank).filter(|_| !json.has("q_lora_rank"));
        let latent = Self {
            query_rank: json.size("q_lora_rank", HIDDEN)?.or(unless_null),
            rank: size("kv_lora_rank", 512)?,
            plain_dim: size("qk_nope_head_dim", defaults.plain_dim)?,
            rotary_dim: size("qk_rope_head_dim", 64)?,
            value_dim: size("v_head_dim", defaults.value_dim)?,
            // Not rms_norm_eps.
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

    /// Elements stored per token: a latent and a rotated part.
    pub fn key_dim(&self) -> usize {
        self.rank + self.rotary_dim
    }

    /// Elements of a head's query as it is projected.
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
