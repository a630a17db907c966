//! Gemma 3: Gemma 2 with QK norm instead of softcaps, five layers within a window for each without.
//!
//! arXiv 2503.19786. Layers with windows have a separate RoPE base, the others a longer one.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Gemma 3.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qk_norm: true,
            post_norm: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::NormedMlp,
    }
}
