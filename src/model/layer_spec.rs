//! Descriptions of a layer's parts, which families return and `blocks` loads.

use crate::config::ModelConfig;
use souffleur_kernels::rope::PositionScale;

#[derive(Clone, Copy, Debug)]
pub struct LayerSpec {
    pub mixer: MixerSpec,
    pub feed_forward: FeedForwardSpec,
}

impl LayerSpec {
    /// Llama's layer: attention and a gated MLP, with biases as configured.
    pub fn dense(attention: AttentionSpec, config: &ModelConfig) -> Self {
        Self {
            mixer: MixerSpec::Attention(attention),
            feed_forward: FeedForwardSpec::Mlp {
                bias: config.bias.mlp,
            },
        }
    }
}

/// Position of the norms of attention and MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockNorms {
    /// Norm of a block's input.
    Before,
    /// Norms of a block's input and output.
    Around,
    /// Norm of a block's output, before the residual add.
    After,
}

impl BlockNorms {
    pub fn precede(self) -> bool {
        self != Self::After
    }

    pub fn follow(self) -> bool {
        self != Self::Before
    }

    /// Name of the norm of the feed-forward block's input. If attention has an output norm, that norm is the one named
    /// `post_attention_layernorm`.
    pub fn of_feed_forward_input(self) -> Option<&'static str> {
        match self {
            Self::Before => Some("post_attention_layernorm"),
            Self::Around => Some("pre_feedforward_layernorm"),
            Self::After => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    None,
    Heads,
    /// One norm over all heads together.
    Whole,
}

#[derive(Clone, Copy, Debug)]
pub enum MixerSpec {
    Attention(AttentionSpec),
    Latent,
}

#[derive(Clone, Copy, Debug)]
pub enum FeedForwardSpec {
    Mlp {
        bias: bool,
    },
    /// Experts in the configured layers, a gated MLP in the others.
    Experts,
}

#[derive(Clone, Copy, Debug)]
pub struct AttentionSpec {
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub qk_norm: QkNorm,
    /// Whether value heads are normalised, without a weight.
    pub v_norm: bool,
    pub sinks: bool,
    /// Whether the output is normalised before the residual add.
    pub post_norm: bool,
    /// Sliding window, including the query's own token; `None` for full attention.
    pub window: Option<usize>,
    pub query_scale: Option<PositionScale>,
}

impl AttentionSpec {
    /// Biases, norms and window as configured for a layer, without other features.
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
