//! Qwen3: QK norm of every head before RoPE; attention biases as configured, rarely present.

use crate::config::ModelConfig;
use crate::family::{Defaults, Family, GgufFamily};
use crate::layer_spec::{AttentionSpec, LayerSpec, QkNorm};
use crate::qwen2;

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(32),
        head_dim: Some(128),
        ..qwen2::DEFAULTS
    },
    windows: qwen2::WINDOWS,
    qk_norm: QkNorm::Heads,
    gguf: GgufFamily::named(Some("qwen3")),
    ..Family::new("Qwen3ForCausalLM", "qwen3", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}
