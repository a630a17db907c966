//! Gemma 2: norms before and behind each block, capped scores, every other layer within a window.
//!
//! arXiv 2408.00118. Norms are written as how far they are from one, embeddings are multiplied with the square root of
//! the width, the MLP's gate is a gelu. Scores and logits bend towards caps.

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
