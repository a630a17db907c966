//! Llama 2 and 3, and models of the same architecture.
//!
//! Biases as configured, on attention and MLP separately. Llama 3.1's longer context is in the rotation's frequencies
//! ([`crate::model::rope`]), not here.

use crate::model::config::ModelConfig;
use crate::model::family::{Family, GgufFamily};
use crate::model::layer_spec::{AttentionSpec, LayerSpec};
use crate::model::mixtral;

pub(crate) static FAMILY: Family = Family {
    mlp_bias: true,
    gguf: GgufFamily {
        // Mixtral's files differ from Llama's in having experts.
        by_experts: |experts| experts.map(|_| &mixtral::FAMILY),
        paired_rows: true,
        experts: Some(mixtral::GGUF_EXPERTS),
        ..GgufFamily::named(Some("llama"))
    },
    ..Family::new("LlamaForCausalLM", "llama", layer)
};

/// The parts of a layer of Llama.
pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}
