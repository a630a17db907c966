//! Values that are refused, or stay within bounds.

use super::*;

#[test]
fn what_is_not_supported_is_refused_with_key_value_and_limit() {
    let table = [
        (
            json!({"architectures": ["GPT2LMHeadModel"]}),
            "architecture \"GPT2LMHeadModel\" is not supported",
        ),
        (json!({"architectures": null}), "architectures is missing"),
        (json!({"hidden_size": null}), "hidden_size is missing"),
        (
            json!({"hidden_size": 63}),
            "hidden_size is 63 and not a multiple of num_attention_heads, 4",
        ),
        (
            json!({"num_attention_heads": 0}),
            "num_attention_heads is 0, expected a whole number from 1 to 4096",
        ),
        (
            json!({"num_attention_heads": 64}),
            "head_dim is 1, expected an even number",
        ),
        (
            json!({"num_key_value_heads": 3}),
            "is 3 and does not divide num_attention_heads, 4",
        ),
        (
            json!({"vocab_size": -1}),
            "vocab_size is -1, expected a whole number from 1 to 16777216",
        ),
        (
            json!({"num_hidden_layers": 1e9}),
            "num_hidden_layers is 1000000000.0, expected a whole number",
        ),
        (
            json!({"head_dim": 15}),
            "head_dim is 15, expected an even number",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "hidden_act is \"gelu\", supported is \"silu\"",
        ),
        (
            json!({"dtype": "float8_e4m3fn"}),
            "supported are float32, float16 and bfloat16",
        ),
        (
            json!({"eos_token_id": [2, -1]}),
            "eos_token_id is [2,-1], expected a token id",
        ),
        (
            json!({"tie_word_embeddings": 1}),
            "tie_word_embeddings is 1, expected true or false",
        ),
        (
            json!({"layer_types": ["full_attention"]}),
            "has 1 entries, expected num_hidden_layers, 3",
        ),
        (
            json!({"layer_types": ["full_attention", "x", "full_attention"]}),
            "names \"x\", supported are",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
            "but use_sliding_window or sliding_window is off",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
            "so K/V cannot be reused",
        ),
    ];
    for (edits, expected) in table {
        let config = with(base("Qwen2ForCausalLM"), edits);
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
    for architecture in Architecture::ALL {
        for key in keys {
            for value in &hostile {
                let config = with(base(architecture.name()), json!({ key: value }));
                let Ok(config) = parse(&config) else { continue };
                assert!(config.parameters() > 0 && config.context_tokens() <= MAX_POSITIONS);
                let rope = config.rope.frequencies(config.head_dim);
                assert!(
                    rope.inv_freq.iter().all(|radians| radians.is_finite()),
                    "{config:?}"
                );
            }
        }
    }
}

#[test]
fn a_file_that_is_missing_or_endless_is_an_error() {
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
    assert!(error.contains("more than 4194304 bytes"), "{error}");
}
