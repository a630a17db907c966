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

/// Where the norms of a layer's blocks, attention and MLP, are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockNorms {
    /// Of a block's input.
    Before,
    /// Of its input and its output.
    Around,
    /// Of its output, before the residual add.
    After,
}

impl BlockNorms {
    /// Whether a block's input is normed.
    pub fn precede(self) -> bool {
        self != Self::After
    }

    /// Whether a block's output is normed.
    pub fn follow(self) -> bool {
        self != Self::Before
    }

    /// The name of the norm of the feed-forward block's input. The usual one norms attention's output where outputs are
    /// normed.
    pub fn of_feed_forward_input(self) -> Option<&'static str> {
        match self {
            Self::Before => Some("post_attention_layernorm"),
            Self::Around => Some("pre_feedforward_layernorm"),
            Self::After => None,
        }
    }
}

/// The norms of queries and keys before the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// There are none.
    None,
    /// Of each head.
    Heads,
    /// Of all heads together.
    Whole,
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
    /// The norms of q and k before the rotation.
    pub qk_norm: QkNorm,
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
    /// Biases, norms and window as the configuration has them for a layer, and nothing more.
    pub fn plain(config: &ModelConfig, layer: usize) -> Self {
        Self {
            qkv_bias: config.bias.qkv,
            o_bias: config.bias.o,
            qk_norm: config.qk_norm,
            v_norm: false,
            sinks: false,
            post_norm: config.norms().follow(),
            window: config.windows[layer],
            query_scale: None,
        }
    }
}
