//! Qwen2 and Qwen2.5: bias on q, k and v only; from some layer on a sliding window, if switched on.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Qwen2.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
