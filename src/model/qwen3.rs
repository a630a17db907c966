//! Qwen3: every head of q and k is normed before the rotation; attention biases as configured, rarely there.

use crate::model::blocks::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// What a layer of Qwen3 is made of.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qkv_bias: config.bias.qkv,
            o_bias: config.bias.o,
            qk_norm: true,
            sinks: false,
            window: config.windows[layer],
        }),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
