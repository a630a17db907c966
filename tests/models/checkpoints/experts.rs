//! Tests of experts and latent attention in quantised checkpoints.

use souffleur_kernels::dtype::Dtype;

use super::{folders_of, logits};
use crate::quantised::{bf16s, kinds};

const EXPERTS: &[(&str, usize)] = &[
    ("hidden_size", 128),
    ("intermediate_size", 256),
    ("moe_intermediate_size", 64),
    ("head_dim", 32),
];
const LATENT: &[(&str, usize)] = &[
    ("hidden_size", 128),
    ("intermediate_size", 256),
    ("moe_intermediate_size", 64),
    ("kv_lora_rank", 64),
    ("q_lora_rank", 64),
    ("qk_nope_head_dim", 32),
    ("qk_rope_head_dim", 32),
    ("v_head_dim", 32),
];

#[test]
fn experts_and_latent_attention_have_the_logits_of_their_dequantised_values() {
    for (kind, config, quantise) in kinds() {
        if !["fp8, blocks", "int8, rows", "gptq", "awq", "packed"].contains(&kind) {
            continue;
        }
        for model in [("qwen3-moe", EXPERTS), ("deepseek-v3", LATENT)] {
            let folders = folders_of(model, &config, quantise, |tensor, values| {
                tensor.data = bf16s(values);
            });
            // 8-bit codes are converted to bf16; 4-bit blocks are multiplied exactly in f32 only.
            let dtype = if kind.contains('8') {
                Dtype::BF16
            } else {
                Dtype::F32
            };
            let expected = logits(folders.plain.path(), dtype, None);
            assert!(expected.iter().flatten().all(|x| x.is_finite()), "{kind}");
            let got = logits(folders.quantised.path(), dtype, None);
            assert_eq!(got, expected, "{kind}, {}", model.0);
        }
    }
}
