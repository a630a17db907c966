//! Model configuration, from `config.json`: sizes, biases, windows, RoPE and family-specific parts.
//!
//! Keys and defaults follow the classes of `transformers` 5. Unsupported keys that would change the result are
//! rejected.

pub(crate) mod deepseek;
pub(crate) mod deepstack;
pub mod experts;
mod full_heads;
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
pub(crate) mod tying;
pub(crate) mod windows;

use self::experts::ExpertsConfig;
use self::gemma::{GemmaConfig, ImageAttention};
use self::latent::LatentConfig;
use self::recurrent::{RecurrentConfig, StoredForm};

pub use crate::family::Architecture;
use crate::layer_spec::{BlockNorms, QkNorm};
use crate::rope::{MropeSections, RopeConfig};
use souffleur_base::kv_layout::{KvDtype, KvLayout, LayerKv, PagedKv, Values};
use souffleur_base::prompt_images::{BidirectionalLayers, ImageSupport};
use souffleur_kernels::Gate;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::rope::PositionScale;
use souffleur_kernels::shape::{AttentionShape, DecoderShape};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasConfig {
    /// Whether q, k and v have biases; for latent attention, the down projections.
    pub qkv: bool,
    pub o: bool,
    pub mlp: bool,
}

/// Validated: sizes are positive (or 0 for an MLP or RoPE that no layer has), and their products fit `usize`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// MLP width of layers without experts.
    pub intermediate_size: usize,
    pub experts: Option<ExpertsConfig>,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// K/V heads of a layer (in Gemma 4, of a window layer); divides `num_attention_heads`. One for latent attention.
    pub num_key_value_heads: usize,
    /// Elements of a head (in Gemma 4, of a window layer), even; for latent attention, only the rotated elements.
    pub head_dim: usize,
    pub latent: Option<LatentConfig>,
    pub rms_norm_eps: f32,
    pub tie_word_embeddings: bool,
    pub bias: BiasConfig,
    pub qk_norm: QkNorm,
    /// Layers with a recurrent state instead of keys and values.
    pub recurrent: Option<RecurrentConfig>,
    /// Number of rotated elements of a head, which are its first ones; even.
    pub rotary_dim: usize,
    /// For each layer, whether it has RoPE.
    pub rotated: Vec<bool>,
    pub embedding_scale: Option<f32>,
    /// Factor on a block's output, before the residual add.
    pub residual_scale: Option<f32>,
    /// Factor on scores, instead of 1/sqrt(elements of a query).
    pub score_scale: Option<f32>,
    pub logits_divisor: Option<f32>,
    pub query_scale: Option<PositionScale>,
    pub gemma: Option<GemmaConfig>,
    /// Whether each query head has an attention sink.
    pub sinks: bool,
    /// Sliding window of each layer, including the query's own token; `None` for full attention.
    pub windows: Vec<Option<usize>>,
    /// Context length in the file, in tokens; see [`Self::context_tokens`].
    pub max_position_embeddings: usize,
    pub rope: RopeConfig,
    /// The sections of M-RoPE, in which image tokens have 3-D positions: time, row and column.
    pub mrope: Option<MropeSections>,
    /// Further vectors of each position of an image, for the outputs of as many layers (DeepStack); fewer than layers.
    pub deepstack: usize,
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Vec<u32>,
    /// The element type of the weights, if the file names one.
    pub dtype: Option<Dtype>,
}

impl ModelConfig {
    /// Longest sequence that RoPE supports, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.rope
            .extended_positions()
            .unwrap_or(0)
            .max(self.max_position_embeddings)
    }

    /// Factor on scores: the family's, or 1/sqrt(elements of a query), for latent attention times YaRN's factor.
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

    /// Largest width of a token's queries in any layer, in elements; with latent attention, after absorption.
    pub fn q_width(&self) -> usize {
        let (_, dims) = self.kinds_of_heads();
        self.num_attention_heads * dims.into_iter().fold(0, usize::max)
    }

    /// Largest width of a token's keys in any layer, in elements. Values are as wide, or part of the keys.
    pub fn kv_width(&self) -> usize {
        let (heads, dims) = self.kinds_of_heads();
        (heads[0] * dims[0]).max(heads[1] * dims[1])
    }

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

    /// `None` for layers without a state.
    pub fn states_in(&self, layer: usize) -> Option<&RecurrentConfig> {
        self.recurrent.as_ref().filter(|states| states.is_in(layer))
    }

    pub fn norms(&self) -> BlockNorms {
        self.architecture.family().norms
    }

    pub fn gate(&self) -> Gate {
        match self.gemma {
            Some(_) => gemma::GATE,
            None => Gate::Silu,
        }
    }

    /// Whether norm weights are stored minus one.
    pub fn stores_norms_minus_one(&self) -> bool {
        let states = self.recurrent.as_ref().map(|states| states.stored_form);
        states == Some(StoredForm::MinusOne)
            || self
                .gemma
                .as_ref()
                .is_some_and(|gemma| gemma.norms_minus_one)
    }

    pub fn images(&self) -> ImageSupport {
        match (self.image_attention(), &self.mrope) {
            (ImageAttention::None, _) => {
                ImageSupport::Missing("no vision tower of this model's family is supported")
            }
            (ImageAttention::Bidirectional(_), _) => ImageSupport::Bidirectional,
            (ImageAttention::Causal, Some(_)) if self.deepstack > 0 => {
                ImageSupport::Deepstack(self.deepstack)
            }
            (ImageAttention::Causal, Some(_)) => ImageSupport::Grid,
            (ImageAttention::Causal, None) => ImageSupport::Sequence,
        }
    }

    /// The layers in which the vectors of an image attend to each other in both directions; `None` if attention is
    /// causal.
    pub fn bidirectional(&self) -> Option<BidirectionalLayers> {
        match self.image_attention() {
            ImageAttention::None | ImageAttention::Causal => None,
            ImageAttention::Bidirectional(layers) => Some(layers),
        }
    }

    fn image_attention(&self) -> ImageAttention {
        let gemma = self.gemma.as_ref();
        gemma.map_or(ImageAttention::Causal, |gemma| gemma.images)
    }

    pub fn gates_attention(&self) -> bool {
        self.recurrent
            .as_ref()
            .is_some_and(|config| config.gated_attention)
    }
}

#[cfg(test)]
mod tests;
