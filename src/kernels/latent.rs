//! Weights and sizes of multi-head latent attention (MLA): all heads of a token share one compressed latent vector.
//!
//! A head's key is `keys^T latent` and a rotated part that all heads share; its value is `values latent`. Keys and
//! values are not materialised (the *absorbed* form): the key matrices are applied to the queries, and each head
//! computes its value from an attention-weighted mean of latents. So attention has a single key head, `[latent, rotated
//! part]`, and the latent is also its value. Prefill and decode compute the same sums.

use super::{Backend, HeadShape, Linear};
use souffleur_base::kv_layout::Values;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentShape {
    pub n_heads: usize,
    pub rank: usize,
    /// Unrotated elements of a query head and of a key head.
    pub plain_dim: usize,
    /// Rotated elements of a query head and of a key head; an even number.
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
    /// Stacked projections to the queries (or their low-rank vector), the latent, and the key's rotated part: `[queries
    /// + rank + rotary_dim, hidden]`.
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
