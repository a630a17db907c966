//! Multi-head latent attention (MLA): the heads of a token share one latent vector, which compresses their keys and
//! values.
//!
//! A head's key is `keys^T latent` and a rotated part that all heads share; its value is `values latent`. Neither is
//! materialised (the *absorbed* form): key matrices are applied to the queries, which are multiplied with the latent,
//! and each head computes its value from an attention-weighted mean of latents. So attention has one key head,
//! `[latent, rotated part]`, whose first part is the value, and the same sums in prefill and decode.

use super::{Backend, HeadShape, Linear};
use souffleur_base::kv_layout::Values;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentShape {
    pub n_heads: usize,
    pub rank: usize,
    /// Elements of a query and of a key without rotation.
    pub plain_dim: usize,
    /// Rotated elements of a query and of a key, even.
    pub rotary_dim: usize,
    pub value_dim: usize,
    pub scale: f32,
}

impl LatentShape {
    pub fn heads(&self) -> HeadShape {
        HeadShape {
            n_heads: self.n_heads,
            n_kv_heads: 1,
            key_dim: self.rank + self.rotary_dim,
            values: Values::InKeys { dim: self.rank },
            scale: self.scale,
            score_cap: None,
            window: None,
        }
    }

    pub fn query_dim(&self) -> usize {
        self.plain_dim + self.rotary_dim
    }

    pub fn query_width(&self) -> usize {
        self.n_heads * self.query_dim()
    }

    pub fn value_width(&self) -> usize {
        self.n_heads * self.value_dim
    }
}

/// For [`Backend::project_latent`] and [`Backend::attend_latent`].
pub struct LatentWeights<B: Backend> {
    /// The queries, or their low-rank vector, then latent and rotated part of the key, stacked: `[queries + rank +
    /// rotary_dim, hidden]`.
    pub down: Linear<B>,
    pub queries: Option<LowRankQueries<B>>,
    /// `[rank]`.
    pub norm: B::Vector,
    /// Epsilon of `norm` and of the queries' norm.
    pub eps: f32,
    /// For each head `[rank, plain_dim]`: from a query to its absorbed form.
    pub keys: B::HeadMatrices,
    /// For each head `[value_dim, rank]`: from a mean of latents to the value.
    pub values: B::HeadMatrices,
}

pub struct LowRankQueries<B: Backend> {
    /// `[query_rank]`.
    pub norm: B::Vector,
    /// `[n_heads * (plain_dim + rotary_dim), query_rank]`.
    pub up: Linear<B>,
}
