//! GLM-4.7-Flash and its like: DeepSeek-V3's latent attention and its router, in other sizes.
//!
//! Which layers have experts is configured layer by layer.

use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of GLM-4-MoE-Lite.
pub fn layer(_: &ModelConfig, _: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Latent,
        feed_forward: FeedForwardSpec::Experts,
    }
}
