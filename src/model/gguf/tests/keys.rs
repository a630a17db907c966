//! Tests of GGUF metadata: rejected keys, ignored keys, sampling defaults.

use super::models::{config, described, tiny_llama};
use super::*;

/// A key of the architecture llama, a value, and the expected error text.
type Refusal = (&'static str, fn() -> Value, &'static str);

/// Keys added to a valid file.
const ADDED: &[Refusal] = &[
    (
        "expert_count",
        || Value::U32(8),
        "llama.expert_used_count is missing",
    ),
    (
        "final_logit_softcapping",
        || Value::F32(30.0),
        "is 30, which is not supported",
    ),
    (
        "attention.scale",
        || Value::F32(1.0),
        "llama.attention.scale is 1, which is not supported",
    ),
    (
        "attn_logit_softcapping",
        || Value::F32(50.0),
        "llama.attn_logit_softcapping is 50, which is not supported",
    ),
    (
        "attention.causal",
        || Value::Flag(false),
        "llama.attention.causal is false, supported: true",
    ),
    (
        "attention.sliding_window",
        || Value::U32(63),
        "llama.attention.sliding_window is 63 in a model with a context of 64 tokens",
    ),
    (
        "attention.max_alibi_bias",
        || Value::F32(8.0),
        "llama.attention.max_alibi_bias is 8, which is not supported",
    ),
    (
        "embedding_scale",
        || Value::F32(12.0),
        "llama.embedding_scale is 12, which is not supported",
    ),
    (
        "pooling_type",
        || Value::U32(3),
        "llama.pooling_type is 3, which is not supported",
    ),
    (
        "rope.dimension_count",
        || Value::U32(1),
        "llama.rope.dimension_count is 1, supported: 2",
    ),
    (
        "attention.value_length",
        || Value::U32(4),
        "llama.attention.value_length is 4, supported: 2",
    ),
    (
        "attention.key_length",
        || Value::U32(3),
        "llama.attention.key_length is 3, expected an even number",
    ),
    (
        "rope.scaling.type",
        || Value::Text("longrope".into()),
        "is \"longrope\", supported: none, linear and yarn",
    ),
    (
        "rope.freq_base",
        || Value::F32(f32::NAN),
        "llama.rope.freq_base is NaN",
    ),
];

/// Keys replaced in a valid file.
const REPLACED: &[Refusal] = &[
    (
        "attention.head_count_kv",
        || Value::U32(3),
        "is 3 and does not divide llama.attention.head_count, 2",
    ),
    (
        "attention.head_count",
        || Value::U32(0),
        "llama.attention.head_count is 0, expected a whole number from 1",
    ),
    (
        "attention.head_count",
        || Value::U32(3),
        "does not divide llama.attention.head_count, 3",
    ),
    (
        "embedding_length",
        || Value::U32(5),
        "is 5 and not a multiple of llama.attention.head_count, 2",
    ),
    (
        "feed_forward_length",
        || Value::I32s(vec![6, 7]),
        "is 6 in the first layer and 7 in another",
    ),
    (
        "block_count",
        || Value::U64(1 << 40),
        "llama.block_count is 1099511627776, expected a whole number from 1 to 1024",
    ),
];

#[test]
fn unsupported_architectures_are_rejected_by_name() {
    refused(
        config(&described("mamba")),
        "architecture \"mamba\" is not supported, supported: llama, qwen2, qwen3, qwen3moe",
    );
    refused(config(&File::default()), "general.architecture is missing");
    refused(
        config(&tiny_llama().text("general.type", "adapter")),
        "general.type is \"adapter\", expected \"model\"",
    );
}

#[test]
fn unsupported_keys_are_rejected_by_key_value_and_limit() {
    for (key, value, expected) in ADDED {
        let file = tiny_llama().pair(&format!("llama.{key}"), value());
        refused(config(&file), expected);
    }
    for (key, value, expected) in REPLACED {
        let value = value();
        let mut file = tiny_llama();
        let key = format!("llama.{key}");
        file.pairs.retain(|(known, _)| known != key.as_bytes());
        let needs_two_kv_heads = key.ends_with("head_count") && matches!(value, Value::U32(3));
        file = file.pair(&key, value);
        // Two KV heads do not divide three query heads.
        if needs_two_kv_heads {
            file.pairs
                .retain(|(known, _)| !known.ends_with(b"head_count_kv"));
            file = file.size("llama.attention.head_count_kv", 2);
        }
        refused(config(&file), expected);
    }
}

#[test]
fn keys_without_effect_are_accepted() {
    for (key, value) in [
        ("attention.causal", Value::Flag(true)),
        ("attention.sliding_window", Value::U32(0)),
        ("attention.sliding_window", Value::U32(64)),
        ("attention.scale", Value::F32(0.0)),
        ("embedding_scale", Value::F32(1.0)),
        ("use_parallel_residual", Value::Flag(false)),
        ("pooling_type", Value::U32(0)),
        ("rope.scaling.finetuned", Value::Flag(true)),
    ] {
        let file = tiny_llama().pair(&format!("llama.{key}"), value);
        assert!(config(&file).is_ok(), "{key}");
    }
}

#[test]
fn sampling_defaults_are_those_of_a_generation_config() {
    let read = |file: &File| generation_config(&open(file).expect("valid"));
    let sampling =
        |file: File, key: &str, value| file.pair(&format!("general.sampling.{key}"), value);
    let none = read(&tiny_llama()).expect("optional");
    assert_eq!(none, GenerationConfig::default());
    let pairs = [
        ("temp", Value::F32(0.6)),
        ("top_p", Value::F32(0.95)),
        ("top_k", Value::I32(20)),
        ("min_p", Value::F32(0.0)),
        ("penalty_repeat", Value::F32(1.05)),
        ("mirostat", Value::I32(2)),
    ];
    let file = pairs.into_iter().fold(tiny_llama(), |file, (key, value)| {
        sampling(file, key, value)
    });
    let expected = GenerationConfig {
        eos_token_ids: None,
        temperature: Some(0.6),
        top_p: Some(0.95),
        top_k: Some(20),
        min_p: Some(0.0),
        repetition_penalty: Some(1.05),
    };
    assert_eq!(read(&file).expect("in range"), expected);
    let last = |tokens| sampling(file.clone(), "penalty_last_n", Value::I32(tokens));
    assert_eq!(read(&last(64)).expect("in range"), expected);
    let off = read(&last(0)).expect("in range");
    assert_eq!(off.repetition_penalty, None);
    let every = sampling(tiny_llama(), "top_k", Value::I32(0));
    assert_eq!(read(&every).expect("in range").top_k, Some(-1));
    for (key, value, expected) in [
        (
            "top_p",
            Value::F32(1.5),
            "general.sampling.top_p is 1.5, expected a number from",
        ),
        (
            "temp",
            Value::F32(-1.0),
            "general.sampling.temp is -1, expected a number from 0 to 100",
        ),
        (
            "temp",
            Value::Text("hot".into()),
            "general.sampling.temp is \"hot\", expected a number",
        ),
    ] {
        refused(read(&sampling(tiny_llama(), key, value)), expected);
    }
}
