//! SmolLM3: Llama without RoPE in some layers (NoPE), usually every fourth.
//!
//! Such a layer knows the order of tokens only from the layers before it (arXiv 2501.18795). Its keys are cached as they
//! are projected.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of SmolLM3; [`ModelConfig::rotated`] says which have RoPE.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp {
            bias: config.bias.mlp,
        },
    }
}
