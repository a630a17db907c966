//! OLMo 2: Llama with norms of each block's output instead of its input.
//!
//! arXiv 2501.00656. Attention and MLP read the residual stream directly; each output is normalised before the residual
//! add. Queries and keys are normalised before RoPE, over all heads together.

use crate::config::ModelConfig;
use crate::family::{Defaults, Family, GgufFamily};
use crate::gguf::keys::POST_ATTENTION;
use crate::layer_spec::{AttentionSpec, BlockNorms, LayerSpec, QkNorm};

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        eps: 1e-5,
        bos: None,
        eos: Some(50_279),
        ..Defaults::LLAMA
    },
    qk_norm: QkNorm::Whole,
    norms: BlockNorms::After,
    gguf: GgufFamily {
        names: &[POST_ATTENTION],
        ..GgufFamily::named(Some("olmo2"))
    },
    missing_on_cuda: Some("QK norms over whole projections"),
    ..Family::new("Olmo2ForCausalLM", "olmo2", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn norms_follow_blocks_and_span_all_heads() {
        let text =
            br#"{"architectures": ["Olmo2ForCausalLM"], "vocab_size": 288, "hidden_size": 64,
            "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2}"#;
        let read = ModelConfig::parse(Path::new("config.json"), text).expect("supported");
        assert_eq!(
            (read.bos_token_id, read.eos_token_ids.as_slice()),
            (None, &[50_279][..])
        );
        assert_eq!(
            (read.max_position_embeddings, read.rms_norm_eps),
            (2048, 1e-5)
        );
        let tensors = read.tensors();
        let shape = |part: &str| {
            let name = format!("model.layers.2.{part}.weight");
            let found = tensors.iter().find(|spec| spec.name == name);
            found.map(|spec| spec.shape.clone())
        };
        assert_eq!(shape("self_attn.q_norm"), Some(vec![64]));
        assert_eq!(shape("self_attn.k_norm"), Some(vec![32]));
        assert_eq!(shape("post_attention_layernorm"), Some(vec![64]));
        assert_eq!(shape("post_feedforward_layernorm"), Some(vec![64]));
        assert_eq!(shape("pre_feedforward_layernorm"), None);
        assert_eq!(shape("input_layernorm"), None);
    }
}
