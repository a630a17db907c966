//! Llama 2 and 3, and what copies them.
//!
//! Biases as configured, on attention and MLP separately. Llama 3.1's longer context is in the rotation's frequencies
//! ([`crate::model::rope`]), not here.

use crate::model::blocks::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// What a layer of Llama is made of.
pub fn layer(config: &ModelConfig, _layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qkv_bias: config.bias.qkv,
            o_bias: config.bias.o,
            qk_norm: false,
            sinks: false,
            window: None,
        }),
        feed_forward: FeedForwardSpec::Mlp {
            bias: config.bias.mlp,
        },
    }
}
