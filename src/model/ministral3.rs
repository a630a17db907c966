//! Ministral 3: Mistral with YaRN, whose queries grow with their positions.
//!
//! A rotated query is multiplied by `1 + beta * ln(1 + floor(position / original context))`, as in Llama 4: attention
//! over many keys stays as sharp as over few. Keys are not scaled, so cached keys are valid for every later query.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Ministral 3.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            query_scale: config.query_scale,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
