//! Qwen3.5, with experts or without, and Qwen3-Next: three layers of gated delta nets, then one of attention, with
//! partial rotary embeddings and an output gate. Norm weights are stored minus one.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Qwen3.5 or Qwen3-Next.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qk_norm: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::Experts,
    }
}
