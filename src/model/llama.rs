//! Llama 2 and 3, and models of the same architecture.
//!
//! Biases as configured, on attention and MLP separately. Llama 3.1's longer context is in the rotation's frequencies
//! ([`crate::model::rope`]), not here.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Llama.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp {
            bias: config.bias.mlp,
        },
    }
}
