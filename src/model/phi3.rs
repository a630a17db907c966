//! Phi-3, Phi-3.5 and Phi-4-mini: Mistral with two fused projections and other rotations.
//!
//! Files fuse the projections to queries, keys and values in one matrix, and gate and up in another;
//! [`crate::model::weights`] splits both. Phi-4-mini has partial rotary embeddings. Long contexts have other
//! frequencies than short ones (LongRoPE, arXiv 2402.13753): which of the two a sequence takes is fixed when it begins
//! ([`RopeConfig::long_above`](crate::model::rope::RopeConfig::long_above)). A window, where one is configured, is in
//! every layer.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Phi-3.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp {
            bias: config.bias.mlp,
        },
    }
}
