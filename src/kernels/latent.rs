//! Multi-head latent attention, as kernels compute it: the heads of a token share one latent vector, which compresses
//! both their keys and their values.
//!
//! A head's key is `keys^T latent` and a rotated part that all heads share; its value is `values latent`. Neither is
//! ever computed (the *absorbed* form): the key matrices are applied to the queries, which are multiplied with the
//! latent, and heads attend to a mean of latents, of which each head computes its value. So attention has one key head,
//! `[latent, rotated part]`, whose first part is the value, and the same sums in a prefill as in a decode.

use super::{Backend, HeadShape, Linear};
use souffleur_base::kv_layout::Values;

/// The heads of a latent attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentShape {
    /// Query heads.
    pub n_heads: usize,
    /// Elements of a latent.
    pub rank: usize,
    /// Elements of a query and of a key that positions do not rotate.
    pub plain_dim: usize,
    /// Elements of them that are rotated, even.
    pub rotary_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
}

impl LatentShape {
    /// The heads of attention over latents.
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

    /// Elements of a head's query as it is projected.
    pub fn query_dim(&self) -> usize {
        self.plain_dim + self.rotary_dim
    }

    /// Width of all query heads of a token as they are projected, in elements.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.query_dim()
    }

    /// Width of the values of all heads, in elements.
    pub fn value_width(&self) -> usize {
        self.n_heads * self.value_dim
    }
}

/// The weights of [`Backend::project_latent`] and [`Backend::attend_latent`].
pub struct LatentWeights<B: Backend> {
    /// The queries, or their low-rank vector, then latent and rotated part of the key, stacked:
    /// `[queries + rank + rotary_dim, hidden]`.
    pub down: Linear<B>,
    /// Up projection of low-rank queries, if the model has them.
    pub queries: Option<LowRankQueries<B>>,
    /// Weight of the latent's norm, `[rank]`.
    pub norm: B::Vector,
    /// Added to the mean square in this norm and that of the queries.
    pub eps: f32,
    /// For each head `[rank, plain_dim]`: from a query to its absorbed form.
    pub keys: B::HeadMatrices,
    /// For each head `[value_dim, rank]`: from a mean of latents to the value.
    pub values: B::HeadMatrices,
}

/// The up projection from a vector of low rank to the queries.
pub struct LowRankQueries<B: Backend> {
    /// Weight of the vector's norm, `[query_rank]`.
    pub norm: B::Vector,
    /// `[n_heads * (plain_dim + rotary_dim), query_rank]`.
    pub up: Linear<B>,
}
