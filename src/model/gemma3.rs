//! Gemma 3: Gemma 2 with QK norm instead of softcaps, and five sliding-window layers for each full one.
//!
//! arXiv 2503.19786. Sliding-window layers have their own RoPE base, the others a larger one.

use crate::config::ModelConfig;
use crate::config::gemma::{self, GemmaRules, ImageAttention};
use crate::family::{Defaults, Family, GgufFamily, GgufWindows, WindowLayers, Windows};
use crate::gemma2;
use crate::gguf::keys::{LOGITS_CAP, POST_ATTENTION};
use crate::layer_spec::{AttentionSpec, BlockNorms, FeedForwardSpec, LayerSpec, MixerSpec, QkNorm};
use souffleur_base::prompt_images::BidirectionalLayers;

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        vocab_size: Some(262_208),
        ..gemma2::DEFAULTS
    },
    windows: Windows {
        layers: WindowLayers::PeriodKey(6),
        ..gemma2::WINDOWS
    },
    qk_norm: QkNorm::Heads,
    norms: BlockNorms::Around,
    gemma: Some(GemmaRules {
        score_cap: None,
        logits_cap: None,
        caps_logits_with_vision: false,
        norms_minus_one: true,
        has_window_rope: true,
        plain_scores: false,
        images: ImageAttention::Bidirectional(BidirectionalLayers::All),
        is_gemma4: false,
    }),
    rope: gemma::full_rope,
    scales: gemma::scales,
    gguf: GgufFamily {
        numbers: &[LOGITS_CAP],
        names: &[POST_ATTENTION],
        windows: GgufWindows::Pattern {
            period: 6,
            required: false,
            default: None,
        },
        ..GgufFamily::named(Some("gemma3"))
    },
    missing_on_cuda: Some("this family's gates and norms"),
    ..Family::new("Gemma3ForConditionalGeneration", "gemma3", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}
