//! LFM2: most layers are gated short convolutions, whose state is their input of a few tokens; the others are those of
//! Qwen3, under names of their own. The last layer may be a convolution: its state needs every token.

use crate::model::blocks::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of LFM2.
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
