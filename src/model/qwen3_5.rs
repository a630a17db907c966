//! Qwen3.5, with experts or without, and Qwen3-Next: three layers of gated delta nets, then one of attention, whose heads
//! rotate only their first elements and whose result goes through a gate. Norms are written as what is added to 1.

use crate::model::blocks::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Qwen3.5 or Qwen3-Next.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            qkv_bias: config.bias.qkv,
            o_bias: config.bias.o,
            qk_norm: true,
            sinks: false,
            window: config.windows[layer],
        }),
        feed_forward: FeedForwardSpec::Experts,
    }
}
