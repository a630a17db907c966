//! Mixtral: Mistral's attention, then a router that sends each token through some MLPs of full width.
//!
//! The router's softmax is over all experts, and the weights of the chosen are divided by their sum.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Mixtral.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Experts,
    }
}
