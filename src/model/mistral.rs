//! Mistral: Llama without biases, and with a sliding window in every layer if configured.
//!
//! A query at position p sees the keys at positions above `p - window`. The executor decides whether keys outside of
//! the window keep their pages.

use crate::config::ModelConfig;
use crate::family::{AttentionBias, Defaults, Family, Windows};
use crate::layer_spec::{AttentionSpec, LayerSpec};

/// Mistral's vision-language class, with the decoder of Mistral or Ministral 3.
pub(crate) const WITH_VISION: &str = "Mistral3ForConditionalGeneration";

/// The class of Pixtral-12B, among others.
const LLAVA: &str = "LlavaForConditionalGeneration";

pub(crate) static FAMILY: Family = Family {
    decoder_of: &[WITH_VISION, LLAVA],
    defaults: Defaults {
        heads: Some(32),
        kv_heads: Some(8),
        context: 131_072,
        ..Defaults::LLAMA
    },
    windows: Windows {
        default: Some(4096),
        ..Windows::EVERYWHERE
    },
    attention_bias: AttentionBias::Never,
    ..Family::new("MistralForCausalLM", "mistral", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}
