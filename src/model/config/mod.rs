//! A model's shape, from its `config.json`: sizes, biases, windows, rotation.
//!
//! Keys, and the values of absent ones, follow the classes of `transformers` 5. Unsupported keys that would change the
//! result are refused; nothing is guessed.

pub(crate) mod deepseek;
pub mod experts;
pub(crate) mod gemma;
pub mod gemma4;
pub mod latent;
mod layers;
pub(crate) mod limits;
mod read;
pub mod recurrent;
pub(crate) mod scales;
mod sizes;
mod tensors;
pub(crate) mod windows;

use self::experts::ExpertsConfig;
use self::gemma::GemmaConfig;
use self::latent::LatentConfig;
use self::recurrent::{RecurrentConfig, Written};

use crate::kernels::Gate;
use crate::kernels::dtype::Dtype;
use crate::kernels::rope::PositionScale;
use crate::kernels::shape::{AttentionShape, DecoderShape};
use crate::kv_layout::{KvDtype, KvLayout, LayerKv, PagedKv, Values};
pub use crate::model::family::Architecture;
use crate::model::layer_spec::{BlockNorms, QkNorm};
use crate::model::rope::RopeConfig;

/// Which projections add a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasConfig {
    /// The q, k and v projections; with latent attention those to low ranks.
    pub qkv: bool,
    /// The attention's output projection.
    pub o: bool,
    /// The gate, up and down projections.
    pub mlp: bool,
}

/// A model's configuration, checked: all sizes are positive and small enough that their products fit `usize`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Width of the residual stream, in elements.
    pub hidden_size: usize,
    /// Width of the MLP of layers without experts, in elements.
    pub intermediate_size: usize,
    /// The experts of the other layers.
    pub experts: Option<ExpertsConfig>,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Query heads in each layer.
    pub num_attention_heads: usize,
    /// Key and value heads in each layer; divides `num_attention_heads`. One where attention is latent.
    pub num_key_value_heads: usize,
    /// Elements in a head, even. Where attention is latent, only the rotated ones.
    pub head_dim: usize,
    /// The shape of attention where that is latent.
    pub latent: Option<LatentConfig>,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// The output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Which projections add a bias.
    pub bias: BiasConfig,
    /// The norms of q and k before the rotation.
    pub qk_norm: QkNorm,
    /// The layers that keep a state instead of keys and values.
    pub recurrent: Option<RecurrentConfig>,
    /// Rotary dimensions: the first elements of a head; even.
    pub rotary_dim: usize,
    /// For each layer: whether RoPE rotates its queries and keys.
    pub rotated: Vec<bool>,
    /// Factor on embeddings.
    pub embedding_scale: Option<f32>,
    /// Factor on a block's output before the residual add.
    pub residual_scale: Option<f32>,
    /// Factor on attention's scores, instead of 1/sqrt of a query's elements.
    pub score_scale: Option<f32>,
    /// The divisor of logits.
    pub logits_divisor: Option<f32>,
    /// Factor on queries, by their positions.
    pub query_scale: Option<PositionScale>,
    /// The parts that only the families of Gemma have.
    pub gemma: Option<GemmaConfig>,
    /// Every query head has an attention sink: a score without a value.
    pub sinks: bool,
    /// For each layer: how many tokens a query sees, itself included; `None` for all of them.
    pub windows: Vec<Option<usize>>,
    /// Positions that the file claims, in tokens; see [`Self::context_tokens`].
    pub max_position_embeddings: usize,
    /// How positions rotate q and k.
    pub rope: RopeConfig,
    /// Token that begins a text.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// The type that the weights are meant to be stored and run in.
    pub dtype: Option<Dtype>,
}

impl ModelConfig {
    /// Longest sequence that the rotation is made for, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.rope
            .extended_positions()
            .unwrap_or(0)
            .max(self.max_position_embeddings)
    }

    /// Factor on every attention score: the family's, or 1/sqrt of a query's elements; with latent attention, times
    /// YaRN's factor.
    pub fn attention_scale(&self) -> f32 {
        let query = |dim: usize| (dim as f32).sqrt().recip();
        if let Some(scale) = self.score_scale {
            return scale;
        }
        match &self.latent {
            Some(latent) => {
                let by_yarn = self.rope.score_factor() as f32;
                query(latent.plain_dim + latent.rotary_dim) * by_yarn
            }
            None => query(self.head_dim),
        }
    }

    /// Width of all query heads of a token as attention reads them, in elements; in the layers where they are the widest.
    pub fn q_width(&self) -> usize {
        let (_, dims) = self.kinds_of_heads();
        self.num_attention_heads * dims.into_iter().fold(0, usize::max)
    }

    /// Width of all key heads of a token, in elements; the values are as wide, or parts of the keys. In the layers where
    /// they are the widest.
    pub fn kv_width(&self) -> usize {
        let (heads, dims) = self.kinds_of_heads();
        (heads[0] * dims[0]).max(heads[1] * dims[1])
    }

    /// The sizes that a backend makes room for.
    pub fn shape(&self) -> DecoderShape {
        DecoderShape {
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            vocab: self.vocab_size,
            attention: AttentionShape {
                n_heads: self.num_attention_heads,
                n_kv_heads: self.num_key_value_heads,
                head_dim: self.head_dim,
            },
        }
    }

    /// The memory that each layer keeps of a sequence, with elements of `dtype`.
    pub fn kv_layout(&self, dtype: impl Into<KvDtype>) -> KvLayout {
        let dtype = dtype.into();
        let pages = |layer| {
            let (heads, key_dim) = self.heads_in(layer);
            let values = match &self.latent {
                Some(latent) => Values::InKeys { dim: latent.rank },
                None => Values::Own { dim: key_dim },
            };
            PagedKv {
                heads,
                key_dim,
                values,
                labels: 0,
                dtype,
            }
        };
        let layer = |layer| match (self.states_in(layer), self.kv_source(layer)) {
            (Some(states), _) => LayerKv::State {
                bytes: states.state_bytes(self.hidden_size),
                heads: states.state_heads(),
            },
            (None, source) if source != layer => LayerKv::Shared(source),
            _ => LayerKv::Pages(pages(layer)),
        };
        KvLayout::new((0..self.num_hidden_layers).map(layer).collect())
    }

    /// The computation of a layer that keeps a state.
    pub fn states_in(&self, layer: usize) -> Option<&RecurrentConfig> {
        self.recurrent.as_ref().filter(|states| states.is_in(layer))
    }

    /// Where the norms of blocks are.
    pub fn norms(&self) -> BlockNorms {
        self.architecture.family().norms
    }

    /// The gate of layers without experts.
    pub fn gate(&self) -> Gate {
        match self.gemma {
            Some(_) => gemma::GATE,
            None => Gate::Silu,
        }
    }

    /// Whether norm weights are stored minus one.
    pub fn writes_norms_from_one(&self) -> bool {
        let states = self.recurrent.as_ref().map(|states| states.written);
        states == Some(Written::FromOne)
            || self
                .gemma
                .as_ref()
                .is_some_and(|gemma| gemma.norms_from_one)
    }

    /// Whether a gate multiplies attention's result.
    pub fn gates_attention(&self) -> bool {
        self.recurrent
            .as_ref()
            .is_some_and(|config| config.gated_attention)
    }
}

#[cfg(test)]
mod tests;
