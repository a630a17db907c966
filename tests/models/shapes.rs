//! Tests that models with valid but unusual shapes run in every quantisation.

use serde_json::{Value, json};
use souffleur_executor::cpu::{CpuExecutor, CpuOptions, describe};
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::loader::LoadFormat;

use crate::common::{fixture, options};

/// A folder with the edited configuration of a fixture, without weights.
fn folder(name: &str, edits: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    let decoder = match config.get_mut("text_config") {
        Some(decoder) => decoder,
        None => &mut config,
    };
    let edits = edits.as_object().unwrap().clone();
    decoder.as_object_mut().unwrap().extend(edits);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

fn check(name: &str, edits: &Value) {
    let dir = folder(name, edits);
    describe(dir.path(), None, None, LoadFormat::Dummy).unwrap();
    for quantization in [None, Some(Quantization::Int8), Some(Quantization::Int4)] {
        let options = CpuOptions {
            dtype: Some(Dtype::BF16),
            quantization,
            load_format: LoadFormat::Dummy,
            ..options()
        };
        let mut executor = CpuExecutor::load(dir.path(), &options, &mut |_, _| {}).unwrap();
        let mut count = 0;
        let score = executor.score(&[1, 2, 3, 4, 5, 6, 7], 3, &mut |_, logits| {
            let finite = logits.iter().all(|logit| logit.is_finite());
            assert!(finite, "{name} {edits} {quantization:?}");
            count += 1;
        });
        score.unwrap();
        assert_eq!(count, 7, "{name} {edits} {quantization:?}");
    }
}

#[test]
fn experts_of_any_number_and_width_run() {
    for (name, edits) in [
        ("qwen3-moe", json!({"moe_intermediate_size": 1})),
        (
            "qwen3-moe",
            json!({"moe_intermediate_size": 33, "num_experts": 1, "num_experts_per_tok": 1}),
        ),
        ("qwen3-moe", json!({"num_experts_per_tok": 11})),
        ("mixtral", json!({"intermediate_size": 7})),
        (
            "gpt-oss",
            json!({"intermediate_size": 5, "num_experts_per_tok": 6}),
        ),
        (
            "lfm2-moe",
            json!({"moe_intermediate_size": 3, "routed_scaling_factor": 0}),
        ),
        (
            "deepseek-v3",
            json!({"moe_intermediate_size": 9, "n_shared_experts": 0, "topk_group": 1}),
        ),
        ("deepseek-v2", json!({"n_routed_experts": 0})),
        ("qwen3-5-moe", json!({"shared_expert_intermediate_size": 1})),
        ("qwen3-next", json!({"mlp_only_layers": [0, 1, 2]})),
    ] {
        check(name, &edits);
    }
}

#[test]
fn recurrent_states_of_any_size_run() {
    for (name, edits) in [
        (
            "qwen3-5",
            json!({"linear_key_head_dim": 1, "linear_value_head_dim": 1}),
        ),
        (
            "qwen3-5",
            json!({"linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 17}),
        ),
        ("qwen3-5", json!({"linear_conv_kernel_dim": 8})),
        (
            "qwen3-next",
            json!({"linear_conv_kernel_dim": 2, "linear_value_head_dim": 33}),
        ),
        ("lfm2", json!({"conv_L_cache": 8})),
        ("lfm2", json!({"conv_L_cache": 2, "conv_bias": true})),
    ] {
        check(name, &edits);
    }
}

/// Hybrid models whose layers are all of one kind have either no keys and values or no states.
#[test]
fn hybrids_with_layers_of_one_kind_run() {
    for (name, edits) in [
        (
            "qwen3-5",
            json!({"layer_types": null, "full_attention_interval": 9}),
        ),
        (
            "qwen3-5",
            json!({"layer_types": null, "full_attention_interval": 1}),
        ),
        (
            "lfm2",
            json!({"layer_types": ["conv", "conv", "conv", "conv", "conv"]}),
        ),
    ] {
        check(name, &edits);
    }
}

#[test]
fn heads_of_any_size_run() {
    for (name, edits) in [
        (
            "qwen3-5",
            json!({"partial_rotary_factor": 0, "rope_parameters": null}),
        ),
        (
            "qwen3-5",
            json!({"head_dim": 2, "partial_rotary_factor": 1, "rope_parameters": null}),
        ),
        (
            "deepseek-v2",
            json!({"kv_lora_rank": 2, "qk_nope_head_dim": 3, "v_head_dim": 5}),
        ),
        (
            "deepseek-v3",
            json!({"q_lora_rank": 1, "qk_rope_head_dim": 2, "kv_lora_rank": 65}),
        ),
        (
            "glm4-moe-lite",
            json!({"num_attention_heads": 1, "num_key_value_heads": 1}),
        ),
        ("phi3-partial", json!({"partial_rotary_factor": 0})),
        (
            "phi3",
            json!({"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 5}),
        ),
        ("smollm3", json!({"no_rope_layers": [0, 0], "head_dim": 6})),
        (
            "granite",
            json!({"num_attention_heads": 1, "num_key_value_heads": 1}),
        ),
        (
            "olmo2",
            json!({"num_attention_heads": 1, "num_key_value_heads": 1}),
        ),
        (
            "olmo2-bias",
            json!({"head_dim": 2, "num_key_value_heads": 1}),
        ),
        ("ministral3", json!({"head_dim": 2, "sliding_window": 1})),
        ("gpt-oss", json!({"head_dim": 2, "sliding_window": 1})),
        ("gemma2", json!({"head_dim": 2, "sliding_window": 1})),
        (
            "gemma4",
            json!({"head_dim": 2, "global_head_dim": 66, "hidden_size_per_layer_input": 1, "num_kv_shared_layers": 4}),
        ),
        (
            "gemma4-experts",
            json!({"head_dim": 34, "global_head_dim": 6, "moe_intermediate_size": 1, "top_k_experts": 5}),
        ),
        (
            "gemma3-wrapped",
            json!({"head_dim": 34, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 5}),
        ),
        (
            "gpt-oss",
            json!({"num_attention_heads": 3, "num_key_value_heads": 1}),
        ),
    ] {
        check(name, &edits);
    }
}
