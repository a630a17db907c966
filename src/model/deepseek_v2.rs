//! DeepSeek-V2: latent attention, then experts of which some take every token.
//!
//! arXiv 2405.04434. The router's softmax is over all experts; a token goes through the best of them, or through the
//! best within the groups with the highest maximum. The first layers have a plain MLP. The weights of the chosen are
//! scaled and never divided by their sum.

use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of DeepSeek-V2.
pub fn layer(_: &ModelConfig, _: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Latent,
        feed_forward: FeedForwardSpec::Experts,
    }
}
