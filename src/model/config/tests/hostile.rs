//! Tests that invalid configurations are rejected, or give sizes and factors within bounds.

use super::*;

/// Edits of a configuration, and the expected error text.
type Refusal = (fn() -> Value, &'static str);

const REFUSED: &[Refusal] = &[
    (
        || json!({"architectures": ["GPT2LMHeadModel"]}),
        "architecture \"GPT2LMHeadModel\" is not supported",
    ),
    (
        || json!({"architectures": null}),
        "architectures is missing",
    ),
    (|| json!({"hidden_size": null}), "hidden_size is missing"),
    (
        || json!({"hidden_size": 63}),
        "hidden_size is 63 and not a multiple of num_attention_heads, 4",
    ),
    (
        || json!({"num_attention_heads": 0}),
        "num_attention_heads is 0, expected a whole number from 1 to 4096",
    ),
    (
        || json!({"num_attention_heads": 64}),
        "head_dim is 1, expected an even number",
    ),
    (
        || json!({"num_key_value_heads": 3}),
        "is 3 and does not divide num_attention_heads, 4",
    ),
    (
        || json!({"vocab_size": -1}),
        "vocab_size is -1, expected a whole number from 1 to 16777216",
    ),
    (
        || json!({"num_hidden_layers": 1e9}),
        "num_hidden_layers is 1000000000.0, expected a whole number",
    ),
    (
        || json!({"head_dim": 15}),
        "head_dim is 15, expected an even number",
    ),
    (
        || json!({"hidden_act": "gelu"}),
        "hidden_act is \"gelu\", supported: \"silu\"",
    ),
    (
        || json!({"dtype": "float8_e4m3fn"}),
        "supported: float32, float16 and bfloat16",
    ),
    (
        || json!({"eos_token_id": [2, -1]}),
        "eos_token_id is [2,-1], expected a token id",
    ),
    (
        || json!({"tie_word_embeddings": 1}),
        "tie_word_embeddings is 1, expected true or false",
    ),
    (
        || json!({"layer_types": ["full_attention"]}),
        "has 1 entries, expected 3 (num_hidden_layers)",
    ),
    (
        || json!({"layer_types": ["full_attention", "x", "full_attention"]}),
        "names \"x\", supported:",
    ),
    (
        || json!({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        "but sliding_window is null or use_sliding_window is false",
    ),
    (
        || json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
        "so K/V cannot be reused",
    ),
];

#[test]
fn unsupported_values_are_rejected_with_key_value_and_limit() {
    for (edits, expected) in REFUSED {
        let config = with(base("Qwen2ForCausalLM"), edits());
        let error = parse(&config).expect_err(expected).to_string();
        assert!(
            error.starts_with("m/config.json: ") && error.contains(expected),
            "{error}"
        );
    }
    let not_json = ModelConfig::parse(Path::new("c"), b"[1")
        .expect_err("not JSON")
        .to_string();
    assert!(not_json.starts_with("c: is not JSON"), "{not_json}");
}

#[test]
fn hostile_values_are_refused_or_stay_within_bounds() {
    let hostile = [
        json!(-1),
        json!(0),
        json!(1),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!([]),
        json!([[[]]]),
        json!({}),
        json!({"rope_type": "yarn", "factor": 1e6, "original_max_position_embeddings": 1 << 27}),
        json!({"rope_type": "llama3", "factor": 1e-6, "low_freq_factor": 1e-6, "high_freq_factor": 1e6}),
        json!({"rope_type": "longrope", "factor": 1e6, "original_max_position_embeddings": 1,
            "short_factor": [1e-6, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1e6, 1, 1, 1, 1, 1, 1, 1]}),
        json!({"rope_type": "longrope", "short_factor": [1], "long_factor": [-1, 0, null, "1"]}),
        json!({"mrope_section": [1, u64::MAX, 1], "mrope_interleaved": true}),
        json!({"mrope_section": [1e308, -1, null]}),
        json!({"deepstack_visual_indexes": [u64::MAX, 0]}),
        json!({"rope_type": "yarn", "llama_4_scaling_beta": 1e3, "original_max_position_embeddings": 1}),
        json!(true),
        json!(null),
    ];
    let keys = [
        "architectures",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "rope_scaling",
        "vision_config",
        "rope_parameters",
        "rope_theta",
        "partial_rotary_factor",
        "bos_token_id",
        "eos_token_id",
        "dtype",
        "torch_dtype",
        "attention_bias",
        "mlp_bias",
        "original_max_position_embeddings",
    ];
    for architecture in Architecture::all() {
        for key in keys.iter().chain(KEYS_OF_FAMILIES) {
            for value in &hostile {
                let config = with(base(architecture.name()), json!({ *key: value }));
                check_bounds(&with(few_experts(), config));
            }
        }
    }
}

const KEYS_OF_FAMILIES: &[&str] = &[
    "text_config",
    "norm_eps",
    "tie_embedding",
    // Experts.
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "num_dense_layers",
    "use_expert_bias",
    "routed_scaling_factor",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "mlp_layer_types",
    "moe_layer_freq",
    "n_group",
    "topk_group",
    "topk_method",
    "scoring_func",
    "swiglu_limit",
    "swiglu_alpha",
    // Layers with states.
    "full_attention_interval",
    "full_attn_idxs",
    "attn_output_gate",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "conv_L_cache",
    "conv_bias",
    "block_ff_dim",
    "block_multiple_of",
    "block_ffn_dim_multiplier",
    "block_auto_adjust_ff_dim",
    // Gemma.
    "hidden_activation",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "sliding_window_pattern",
    "rope_local_base_freq",
    "use_bidirectional_attention",
    "global_head_dim",
    "num_global_key_value_heads",
    "attention_k_eq_v",
    "num_kv_shared_layers",
    "use_double_wide_mlp",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "per_layer_config",
    "enable_moe_block",
    "top_k_experts",
    // Latent attention.
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_interleave",
    // Factors, and layers without RoPE.
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "no_rope_layers",
    "no_rope_layer_interval",
];

/// Few experts, so that listing all tensors is fast.
fn few_experts() -> Value {
    json!({
        "num_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0, "num_dense_layers": 0,
    })
}

/// Checks that an accepted configuration has finite factors and bounded sizes.
fn check_bounds(config: &Value) {
    let Ok(read) = parse(config) else { return };
    assert!(read.parameters() > 0, "{config}");
    assert!(read.context_tokens() <= MAX_POSITIONS, "{config}");
    let rope = read.rope.frequencies(read.rotary_dim);
    let long = rope.long_inv_freq.iter().flatten();
    assert!(
        rope.inv_freq
            .iter()
            .chain(long)
            .all(|radians| radians.is_finite())
    );
    assert!(rope.attention_scale.is_finite(), "{config}");
    let by_position = read.query_scale.map_or(1.0, |scale| scale.at(u32::MAX));
    assert!(by_position.is_finite(), "{config}");
    assert!(read.attention_scale().is_finite(), "{config}");
    let layout = read.kv_layout(Dtype::F32);
    assert_eq!(layout.layers().len(), read.num_hidden_layers);
    assert!(layout.bytes_per_token() < 1 << 45 && layout.state_bytes() < 1 << 45);
    if let Some(experts) = &read.experts {
        let routing = &experts.routing;
        assert!(
            (1..=routing.n_experts).contains(&routing.n_used),
            "{config}"
        );
    }
}

const QWEN: &str = "Qwen3MoeForCausalLM";
const QWEN_VL: &str = "Qwen3VLForConditionalGeneration";
const HYBRID: &str = "Qwen3_5ForCausalLM";
const NEXT: &str = "Qwen3NextForCausalLM";
const LFM2: &str = "Lfm2ForCausalLM";
const LFM2_MOE: &str = "Lfm2MoeForCausalLM";
const V2: &str = "DeepseekV2ForCausalLM";
const V3: &str = "DeepseekV3ForCausalLM";
const GLM: &str = "Glm4MoeLiteForCausalLM";
const GPT_OSS: &str = "GptOssForCausalLM";

/// A family's class, edits of its configuration, and the expected error text.
type FamilyRefusal = (&'static str, fn() -> Value, &'static str);

const REFUSED_BY_FAMILIES: &[FamilyRefusal] = &[
    (
        QWEN,
        || json!({"num_experts": -1}),
        "num_experts is -1, expected a whole number from 0 to 1024",
    ),
    (
        QWEN,
        || json!({"num_experts": 1_u64 << 40}),
        "num_experts is 1099511627776, expected",
    ),
    (
        QWEN,
        || json!({"num_experts": 8.5}),
        "num_experts is 8.5, expected a whole number",
    ),
    (
        QWEN,
        || json!({"num_experts_per_tok": 0}),
        "num_experts_per_tok is 0, expected a whole number from 1",
    ),
    (
        QWEN,
        || json!({"num_experts_per_tok": 9}),
        "num_experts_per_tok is 9, more than num_experts, 8",
    ),
    (
        QWEN,
        || json!({"moe_intermediate_size": 0}),
        "moe_intermediate_size is 0, expected",
    ),
    (
        QWEN,
        || json!({"decoder_sparse_step": 0}),
        "decoder_sparse_step is 0, expected",
    ),
    (
        QWEN,
        || json!({"mlp_only_layers": "all"}),
        "mlp_only_layers is \"all\", expected a list of layers",
    ),
    (
        QWEN_VL,
        || json!({"vision_config": {"deepstack_visual_indexes": [0, 1, 2]}}),
        "vision_config.deepstack_visual_indexes names 3 layers, expected fewer than the 3 layers",
    ),
    (
        QWEN_VL,
        || json!({"vision_config": {"deepstack_visual_indexes": [-1]}}),
        "vision_config.deepstack_visual_indexes is [-1], expected a list of layers",
    ),
    (
        GPT_OSS,
        || json!({"swiglu_limit": -7.0}),
        "swiglu_limit is -7.0, expected a number",
    ),
    (
        GPT_OSS,
        || json!({"swiglu_alpha": "big"}),
        "swiglu_alpha is \"big\", expected a number",
    ),
    (
        GPT_OSS,
        || json!({"layer_types": ["full_attention"]}),
        "layer_types has 1 entries, expected",
    ),
    (
        GPT_OSS,
        || json!({"head_dim": 7}),
        "head_dim is 7, expected an even number",
    ),
    (
        HYBRID,
        || json!({"linear_num_key_heads": 0}),
        "linear_num_key_heads is 0, expected",
    ),
    (
        HYBRID,
        || json!({"linear_num_value_heads": 5000}),
        "linear_num_value_heads is 5000, expected a whole number from 1 to 4096",
    ),
    (
        HYBRID,
        || json!({"linear_key_head_dim": 0}),
        "linear_key_head_dim is 0, expected",
    ),
    (
        HYBRID,
        || json!({"linear_value_head_dim": 1 << 20}),
        "linear_value_head_dim is 1048576, expected a whole number from 1 to 1024",
    ),
    (
        HYBRID,
        || json!({"linear_conv_kernel_dim": 1 << 30}),
        "linear_conv_kernel_dim is 1073741824, expected a whole number from 2 to 8",
    ),
    (
        HYBRID,
        || json!({"full_attention_interval": 0}),
        "full_attention_interval is 0, expected",
    ),
    (
        HYBRID,
        || json!({"partial_rotary_factor": -0.5}),
        "partial_rotary_factor is -0.5, expected",
    ),
    (
        HYBRID,
        || json!({"rope_parameters": {"rope_theta": 0}}),
        "rope_parameters.rope_theta is 0, expected a number from",
    ),
    (
        HYBRID,
        || json!({"rope_parameters": {"rope_type": "yarn", "factor": "NaN"}}),
        "rope_parameters.factor is \"NaN\", expected a number",
    ),
    (
        HYBRID,
        || json!({"text_config": 3}),
        "text_config is 3, expected an object",
    ),
    (
        HYBRID,
        || json!({"text_config": {"hidden_size": 0}}),
        "hidden_size is 0, expected",
    ),
    (
        NEXT,
        || json!({"shared_expert_intermediate_size": 0}),
        "shared_expert_intermediate_size is 0, expected",
    ),
    (
        NEXT,
        || json!({"num_experts": 8, "num_local_experts": null, "num_experts_per_tok": 600}),
        "num_experts_per_tok is 600, more than num_experts, 8",
    ),
    (
        LFM2,
        || json!({"conv_L_cache": 1}),
        "conv_L_cache is 1, expected a whole number from 2 to 8",
    ),
    (
        LFM2,
        || json!({"full_attn_idxs": [0.5]}),
        "full_attn_idxs is [0.5], expected a list of layers",
    ),
    (
        LFM2,
        || json!({"block_ffn_dim_multiplier": 1e9}),
        "block_ffn_dim_multiplier is 1000000000.0, expected a number",
    ),
    (
        LFM2,
        || json!({"block_ffn_dim_multiplier": 1024, "intermediate_size": 1 << 20}),
        "gives the MLP a width of",
    ),
    (
        LFM2,
        || json!({"num_key_value_heads": 0}),
        "num_key_value_heads is 0, expected",
    ),
    (
        LFM2_MOE,
        || json!({"routed_scaling_factor": -1}),
        "routed_scaling_factor is -1, expected a number from 0",
    ),
    (
        V2,
        || json!({"kv_lora_rank": 0}),
        "kv_lora_rank is 0, expected a whole number from 2 to 4096",
    ),
    (
        V2,
        || json!({"v_head_dim": 1 << 13}),
        "v_head_dim is 8192, expected a whole number from 2 to 4096",
    ),
    (
        V2,
        || json!({"q_lora_rank": 0}),
        "q_lora_rank is 0, expected a whole number from 1",
    ),
    (
        V3,
        || json!({"n_routed_experts": -8}),
        "n_routed_experts is -8, expected a whole number from 0",
    ),
    (
        V3,
        || json!({"topk_group": 0}),
        "topk_group is 0, expected a whole number from 1 to 8",
    ),
    (
        V3,
        || json!({"n_shared_experts": 1e30}),
        "n_shared_experts is 1e+30, expected a whole number",
    ),
    (
        V3,
        || json!({"qk_rope_head_dim": 0}),
        "qk_rope_head_dim is 0, expected",
    ),
    (
        V3,
        || json!({"rope_scaling": {"type": "yarn", "factor": 8, "mscale": -1}}),
        "rope_scaling.mscale is -1, expected a number from 0",
    ),
    (
        GLM,
        || json!({"mlp_layer_types": "dense"}),
        "mlp_layer_types is \"dense\", expected a list",
    ),
];

#[test]
fn invalid_family_keys_are_rejected_with_key_value_and_limit() {
    for (name, edits, problem) in REFUSED_BY_FAMILIES {
        let edits = edits();
        let config = with(with(base(name), few_experts()), edits.clone());
        let error = parse(&config).expect_err(problem).to_string();
        assert!(error.contains(problem), "{name} {edits}: {error}");
    }
}

#[test]
fn a_missing_or_too_large_file_is_an_error() {
    let dir = tempfile::tempdir().expect("temporary folder");
    assert!(matches!(
        ModelConfig::read(dir.path()),
        Err(LoadError::Io { .. })
    ));
    let file = dir.path().join("config.json");
    std::fs::write(&file, vec![b' '; MAX_FILE_BYTES as usize + 1]).expect("writable");
    let error = ModelConfig::read(dir.path())
        .expect_err("too long")
        .to_string();
    assert!(error.contains("the limit of 4194304 bytes"), "{error}");
}
