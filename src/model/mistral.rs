//! Mistral: Llama without biases, and with a sliding window in every layer where the configuration has one.
//!
//! A query at position p sees the keys at positions above `p - window`. The executor decides whether keys that left the
//! window keep their pages.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Mistral.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
