//! Qwen3: every head of q and k is normed before the rotation; attention biases as configured, rarely there.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Qwen3.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qk_norm: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
