//! Gemma 4: Gemma 3 with heads of two sizes and values that are normed, then what its sizes have each.
//!
//! Layers without windows have wider heads, of which a quarter rotates, and in larger models no projection to values: those
//! are keys before their norm. In smaller ones the last layers read the keys and values of layers before them, and every
//! layer gets something of the tokens themselves ([`crate::model::layer_inputs`]). One has experts beside its MLPs
//! ([`crate::model::side_experts`]). Every layer ends with a factor on the residual stream. Norms are written as they are.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Gemma 4.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qk_norm: true,
            v_norm: true,
            post_norm: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::NormedMlp,
    }
}
