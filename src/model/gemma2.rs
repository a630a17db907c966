//! Gemma 2: norms before and after each block, softcapped scores and logits, a sliding window in every other layer.
//!
//! arXiv 2408.00118. Norm weights are stored minus one, embeddings are multiplied by the square root of the width, the
//! MLP's gate is GELU. A softcap is `cap * tanh(x / cap)`.

use crate::config::ModelConfig;
use crate::config::gemma::{self, GemmaRules, ImageAttention};
use crate::family::{Defaults, Family, GgufFamily, GgufWindows, WindowLayers, Windows};
use crate::gguf::keys::{LOGITS_CAP, POST_ATTENTION, SCORE_CAP};
use crate::layer_spec::{AttentionSpec, BlockNorms, FeedForwardSpec, LayerSpec, MixerSpec};

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        vocab_size: Some(256_000),
        context: 8192,
        ..DEFAULTS
    },
    windows: Windows {
        layers: WindowLayers::Period(2),
        ..WINDOWS
    },
    norms: BlockNorms::Around,
    gemma: Some(GemmaRules {
        score_cap: Some(50.0),
        logits_cap: Some(30.0),
        caps_logits_with_vision: true,
        norms_minus_one: true,
        has_window_rope: false,
        plain_scores: false,
        images: ImageAttention::None,
        is_gemma4: false,
    }),
    scales: gemma::scales,
    gguf: GgufFamily {
        numbers: &[SCORE_CAP, LOGITS_CAP],
        names: &[POST_ATTENTION],
        windows: GgufWindows::Pattern {
            period: 2,
            required: false,
            default: Some(4096),
        },
        ..GgufFamily::named(Some("gemma2"))
    },
    missing_on_cuda: Some("this family's gates and norms"),
    ..Family::new("Gemma2ForCausalLM", "gemma2", layer)
};

/// Defaults of Gemma's families, whose published files omit many keys.
pub(crate) const DEFAULTS: Defaults = Defaults {
    heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 131_072,
    ties_embeddings: true,
    bos: Some(2),
    eos: Some(1),
    ..Defaults::LLAMA
};

pub(crate) const WINDOWS: Windows = Windows {
    default: Some(4096),
    required: true,
    ..Windows::EVERYWHERE
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
