//! SmolLM3: Llama without RoPE in some layers (NoPE), usually every fourth.
//!
//! Layers without RoPE get the order of tokens from the causal mask and from earlier layers (arXiv 2501.18795). Their
//! keys are cached unrotated.

use crate::config::ModelConfig;
use crate::family::{Defaults, Family, GgufFamily, Slides, WindowLayers, Windows};
use crate::layer_spec::{AttentionSpec, LayerSpec};

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(4),
        context: 32_768,
        theta: 2e6,
        ties_embeddings: true,
        bos: Some(128_000),
        eos: Some(128_001),
        ..Defaults::LLAMA
    },
    windows: Windows {
        slides: Slides::ByKey,
        layers: WindowLayers::WithoutRope,
        ..Windows::NONE
    },
    no_rope_interval: Some(4),
    mlp_bias: true,
    gguf: GgufFamily {
        paired_rows: true,
        ..GgufFamily::named(Some("smollm3"))
    },
    ..Family::new("SmolLM3ForCausalLM", "smollm3", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}
