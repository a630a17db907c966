//! Mistral: Llama without biases, and with a sliding window in every layer where the configuration has one.
//!
//! The window is a mask: a query at position p sees the keys at positions above `p - window`. Keys that left the window
//! keep their pages.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// What a layer of Mistral is made of.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
