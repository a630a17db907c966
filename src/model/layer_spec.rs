//! The parts of a layer, as a family describes them: plain data, which `blocks` loads.

use crate::kernels::rope::PositionScale;
use crate::model::config::ModelConfig;

/// The parts of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpec {
    /// The block that mixes tokens.
    pub mixer: MixerSpec,
    /// The block after it.
    pub feed_forward: FeedForwardSpec,
}

impl LayerSpec {
    /// A layer of Llama: attention and a gated MLP, with biases as configured.
    pub fn dense(attention: AttentionSpec, config: &ModelConfig) -> Self {
        Self {
            mixer: MixerSpec::Attention(attention),
            feed_forward: FeedForwardSpec::Mlp {
                bias: config.bias.mlp,
            },
        }
    }
}

/// The block of a layer that mixes tokens.
#[derive(Clone, Copy, Debug)]
pub enum MixerSpec {
    /// Grouped-query attention.
    Attention(AttentionSpec),
    /// Latent attention, of the shape that the configuration has.
    Latent,
}

/// The block of a layer after its attention.
#[derive(Clone, Copy, Debug)]
pub enum FeedForwardSpec {
    /// A gated MLP.
    Mlp {
        /// Its projections add a bias.
        bias: bool,
    },
    /// A gated MLP between two norms; its input norm has another name, as the usual one norms attention's output.
    NormedMlp,
    /// Experts, as the configuration has them in some or all layers; a gated MLP in the others.
    Experts,
}

/// The parts of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpec {
    /// The q, k and v projections add a bias.
    pub qkv_bias: bool,
    /// The output projection adds a bias.
    pub o_bias: bool,
    /// Every head of q and k is normed before the rotation.
    pub qk_norm: bool,
    /// Every value head is normed, without a weight.
    pub v_norm: bool,
    /// Every query head has an attention sink: a score without a value.
    pub sinks: bool,
    /// The output is normed before it is added to the residual stream.
    pub post_norm: bool,
    /// How many tokens a query sees, itself included; `None` for all before it.
    pub window: Option<usize>,
    /// Factor on queries, by their positions.
    pub query_scale: Option<PositionScale>,
}

impl AttentionSpec {
    /// Biases and window as the configuration has them for a layer, and nothing more.
    pub fn plain(config: &ModelConfig, layer: usize) -> Self {
        Self {
            qkv_bias: config.bias.qkv,
            o_bias: config.bias.o,
            qk_norm: false,
            v_norm: false,
            sinks: false,
            post_norm: false,
            window: config.windows[layer],
            query_scale: None,
        }
    }
}
