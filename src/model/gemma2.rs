//! Gemma 2: norms before and after each block, softcapped scores and logits, every other layer within a window.
//!
//! arXiv 2408.00118. Norm weights are stored minus one, embeddings are multiplied by the square root of the width, the
//! MLP's gate is GELU. A softcap is `cap * tanh(x / cap)`.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Gemma 2.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            post_norm: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::NormedMlp,
    }
}
