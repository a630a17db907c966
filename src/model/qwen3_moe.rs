//! Qwen3 with experts: its attention, then a router that sends each token through some of many narrow MLPs.
//!
//! The router's softmax is over all experts. Whether the weights of the chosen are divided by their sum, and which layers
//! have a plain MLP instead, is configured.

use crate::model::blocks::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Qwen3-MoE.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qkv_bias: config.bias.qkv,
            o_bias: config.bias.o,
            qk_norm: true,
            sinks: false,
            window: config.windows[layer],
        }),
        feed_forward: FeedForwardSpec::Experts,
    }
}
