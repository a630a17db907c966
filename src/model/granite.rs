//! Granite 3 and 4 without experts or states: Llama with four factors.
//!
//! Embeddings are multiplied by one, what attention and MLP add to the residual stream by another; a third stands in the
//! place of 1/sqrt of a head's elements on attention's scores, and logits are divided by the last. They keep the sizes of
//! activations alike in models of any width (arXiv 2203.03466). All four are in the configuration
//! ([`ModelConfig::embedding_scale`] and those after it), where [`crate::model::blocks`] finds them.

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
