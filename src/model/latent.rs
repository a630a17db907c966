//! Multi-head latent attention (MLA), common to several families.
//!
//! DeepSeek-V2, arXiv 2405.04434, section 2.1. A token stores one latent vector and one rotated key part for all heads;
//! see [`kernels::latent`](souffleur_kernels::latent). Queries may be low-rank.

use crate::config::latent::LatentConfig;
use crate::loader::Loader;
use crate::loader::heads::{HeadRows, Orientation};
use souffleur_base::error::LoadError;
use souffleur_kernels::latent::{LatentShape, LatentWeights, LowRankQueries};
use souffleur_kernels::{Backend, Linear};

pub struct LatentAttention<B: Backend> {
    layer: usize,
    shape: LatentShape,
    weights: LatentWeights<B>,
    o: Linear<B>,
}

impl<B: Backend> LatentAttention<B> {
    /// # Panics
    /// If the configuration has no latent attention.
    pub fn load(loader: &mut Loader<'_, B>, layer: usize) -> Result<Self, LoadError> {
        let config = loader.config();
        let latent = config
            .latent
            .as_ref()
            .expect("the configuration must have latent attention");
        let (shape, hidden) = (latent.shape(config), config.hidden_size);
        let bias = config.bias;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let key = (name("kv_a_proj_with_mqa"), latent.key_dim());
        let (down, queries) = match latent.query_rank {
            Some(rank) => {
                let down = loader.linear(&[(name("q_a_proj"), rank), key], hidden, bias.qkv)?;
                let norm = loader.vector(&[(&name("q_a_layernorm.weight"), rank)])?;
                let up = [(name("q_b_proj"), shape.query_width())];
                let up = loader.linear(&up, rank, false)?;
                (down, Some(LowRankQueries { norm, up }))
            }
            None => {
                let width = shape.query_width();
                let latent_bias = format!("{}.bias", key.0);
                // Only the queries have no bias.
                let bias = if bias.qkv {
                    Some(loader.vector_after_zeros(width, (&latent_bias, key.1))?)
                } else {
                    None
                };
                let down = loader.linear(&[(name("q_proj"), width), key], hidden, false)?;
                (Linear { bias, ..down }, None)
            }
        };
        let names = if latent.split {
            [name("k_b_proj.weight"), name("v_b_proj.weight")]
        } else {
            [name("kv_b_proj.weight"), name("kv_b_proj.weight")]
        };
        let [keys, values] = head_rows(latent, [&names[0], &names[1]]);
        let weights = LatentWeights {
            down,
            queries,
            norm: loader.vector(&[(&name("kv_a_layernorm.weight"), shape.rank)])?,
            eps: latent.eps,
            keys: loader.head_matrices(shape.n_heads, &keys)?,
            values: loader.head_matrices(shape.n_heads, &values)?,
        };
        let o = [(name("o_proj"), hidden)];
        Ok(Self {
            layer,
            shape,
            weights,
            o: loader.linear(&o, shape.value_width(), bias.o)?,
        })
    }

    pub fn reader(&self) -> &B::Matrix {
        &self.weights.down.weight
    }

    pub fn queries(
        &self,
        backend: &mut B,
        normed: &B::Operand,
        rotations: &B::Tensor,
        batch: &B::Batch,
    ) -> B::Tensor {
        let (weights, shape) = (&self.weights, &self.shape);
        backend.project_latent(normed, weights, shape, rotations, self.layer, batch)
    }

    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, q: &B::Tensor, batch: &B::Batch) {
        let (values, shape) = (&self.weights.values, &self.shape);
        let attended = backend.attend_latent(q, values, shape, self.layer, batch, &self.o.weight);
        backend.project_add(x, &attended, &self.o);
    }
}

/// The rows of a head's up projections to keys and to values: in one tensor, keys first, or in two.
fn head_rows<'a>(latent: &LatentConfig, [keys, values]: [&'a str; 2]) -> [HeadRows<'a>; 2] {
    let (rank, plain, value) = (latent.rank, latent.plain_dim, latent.value_dim);
    let rows = |name, rows, width| HeadRows {
        name,
        rows,
        width,
        first: 0,
        len: rows,
        orientation: Orientation::AsStored,
    };
    if latent.split {
        [rows(keys, rank, plain), rows(values, value, rank)]
    } else {
        let both = rows(keys, plain + value, rank);
        let keys = HeadRows {
            len: plain,
            orientation: Orientation::Transposed,
            ..both
        };
        let values = HeadRows {
            first: plain,
            len: value,
            ..both
        };
        [keys, values]
    }
}
