//! Granite 3 and 4 without experts or states: Llama with four factors.
//!
//! One multiplies embeddings, another the outputs of attention and MLP before the residual add; a third replaces 1/sqrt
//! of a head's elements on attention's scores, and the last divides logits. They keep the sizes of activations alike in
//! models of any width (arXiv 2203.03466). All four are in the configuration ([`ModelConfig::embedding_scale`] and the
//! fields after it), where [`crate::model::blocks`] finds them.

use crate::model::attention::AttentionSpec;
use crate::model::blocks::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::model::config::ModelConfig;

/// The parts of a layer of Granite.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp {
            bias: config.bias.mlp,
        },
    }
}
