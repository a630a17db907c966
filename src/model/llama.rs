//! Llama 2 and 3, and models of the same architecture.
//!
//! Attention and MLP biases are configured separately. Llama 3.1 extends the context by scaling RoPE's frequencies
//! ([`crate::rope`]).

use crate::config::ModelConfig;
use crate::family::{Family, GgufFamily};
use crate::layer_spec::{AttentionSpec, LayerSpec};
use crate::mixtral;

pub(crate) static FAMILY: Family = Family {
    mlp_bias: true,
    gguf: GgufFamily {
        // Mixtral's GGUF files have Llama's architecture name, and experts.
        by_experts: |experts| experts.map(|_| &mixtral::FAMILY),
        paired_rows: true,
        experts: Some(mixtral::GGUF_EXPERTS),
        ..GgufFamily::named(Some("llama"))
    },
    ..Family::new("LlamaForCausalLM", "llama", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}
