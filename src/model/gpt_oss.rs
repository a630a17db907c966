//! gpt-oss: attention with sinks, every other layer within a window, then experts in every layer.
//!
//! arXiv 2508.10925. A sink is a learned score of a query head: it weighs in the softmax and has no value, so that a head
//! may attend to nothing. The router's softmax is over the chosen; experts have biases, and their gate and up
//! projections are clamped.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of gpt-oss.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            sinks: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::Experts,
    }
}
