//! DeepSeek-V3: DeepSeek-V2's layers with another router.
//!
//! arXiv 2412.19437. Experts are scored by sigmoids. For the choice, each expert's correction bias is added to its
//! score, and groups rank by the sum of their best two; the weights of the chosen use the plain scores.

use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of DeepSeek-V3.
pub fn layer(_: &ModelConfig, _: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Latent,
        feed_forward: FeedForwardSpec::Experts,
    }
}
