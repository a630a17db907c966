//! Gemma 4: Gemma 3 with heads of two sizes and normed values, then parts that only some model sizes have.
//!
//! Layers without windows have wider heads, partial rotary embeddings (a quarter), and in larger models no projection
//! to values: these are the keys before their norm. In smaller ones the last layers read the keys and values of earlier
//! layers, and all have per-layer inputs ([`crate::model::layer_inputs`]). One model has experts in parallel with its
//! MLPs ([`crate::model::side_experts`]). Layers end with a factor on the residual stream. Norm weights are plain.

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
