//! Qwen2 and Qwen2.5: bias on q, k and v only; optionally a sliding window from some layer on.

use crate::config::ModelConfig;
use crate::family::{AttentionBias, Defaults, Family, GgufFamily, Slides, WindowLayers, Windows};
use crate::layer_spec::{AttentionSpec, LayerSpec};

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(32),
        ..DEFAULTS
    },
    windows: WINDOWS,
    attention_bias: AttentionBias::Qkv,
    gguf: GgufFamily::named(Some("qwen2")),
    ..Family::new("Qwen2ForCausalLM", "qwen2", layer)
};

/// Defaults of Qwen's families, without BOS and EOS.
pub(crate) const DEFAULTS: Defaults = Defaults {
    context: 32_768,
    bos: None,
    eos: None,
    ..Defaults::LLAMA
};

/// A window from layer `max_window_layers` on, if enabled.
pub(crate) const WINDOWS: Windows = Windows {
    slides: Slides::ByKey,
    default: Some(4096),
    layers: WindowLayers::From(28),
    ..Windows::NONE
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}
