//! Qwen2 and Qwen2.5: bias on q, k and v only; from some layer on a sliding window, if switched on.

use crate::model::config::ModelConfig;
use crate::model::family::{
    AttentionBias, Defaults, Family, GgufFamily, Slides, WindowLayers, Windows,
};
use crate::model::layer_spec::{AttentionSpec, LayerSpec};

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

/// Defaults that Qwen's families share; their texts begin and end with no token by default.
pub(crate) const DEFAULTS: Defaults = Defaults {
    context: 32_768,
    bos: None,
    eos: None,
    ..Defaults::LLAMA
};

/// A window from some layer on, where it is switched on.
pub(crate) const WINDOWS: Windows = Windows {
    slides: Slides::ByKey,
    absent: Some(4096),
    layers: WindowLayers::From(28),
    ..Windows::NONE
};

/// The parts of a layer of Qwen2.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}
