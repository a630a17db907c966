//! Qwen3 with experts: its attention, then a router that sends each token through some of many narrow MLPs.
//!
//! The router's softmax is over all experts. Whether the weights of the chosen are divided by their sum, and which layers
//! have a plain MLP instead, is configured.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Qwen3-MoE.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qk_norm: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::Experts,
    }
}
