//! Tests of roofline floors against values computed by hand.

use std::path::Path;

use serde_json::json;
use souffleur::executor::cpu::matrices;
use souffleur::kernels::dtype::{Dtype, Quantization};
use souffleur::model::loader::Checkpoint;
use souffleur::state::pool::kv_layout::{KvDtype, PagedKv, Values};

use super::attention::query_key_pairs;
use super::*;

/// Two layers with hidden size 8, MLP size 16, and 4 heads of 4 elements over 2 K/V heads: 768 elements each, in
/// matrices of 8x16, twice 8x8, 16x8 and three times 8x16.
fn cost(window: Option<u64>) -> ModelCost {
    ModelCost {
        layer_elements: in_bf16(2 * 768),
        head_elements: in_bf16(100 * 8),
        matrix_bytes: (2 * 768 + 100 * 8) * 2,
        expert_bytes: 0,
        experts: None,
        attention: vec![
            AttentionCost {
                kv_bytes: 2 * 8 * 2,
                pair_elements: 2 * 16,
                window,
                sparse: None,
            };
            2
        ],
        state_bytes: 0,
        state_ops: 0,
    }
}

/// The cost of a model whose keys and values have the data type of its weights.
fn of(config: &ModelConfig, dtype: Dtype, quantization: Option<Quantization>) -> ModelCost {
    cost_of(config, dtype, quantization, &config.kv_layout(dtype))
}

fn cost_of(
    config: &ModelConfig,
    dtype: Dtype,
    quantization: Option<Quantization>,
    layout: &KvLayout,
) -> ModelCost {
    let made = Checkpoint::without_files(config.clone(), dtype);
    let matrices = matrices(&made, quantization);
    ModelCost::new(config, &matrices, |matrix| matrix.bytes, layout)
}

fn in_bf16(elements: u64) -> ByProduct<u64> {
    ByProduct {
        bf16: elements,
        ..ByProduct::default()
    }
}

fn sequence(cached_tokens: u64, new_tokens: u64) -> Sequence {
    Sequence {
        cached_tokens,
        new_tokens,
    }
}

#[test]
fn a_configuration_gives_the_sizes_of_its_matrices() {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 100, "hidden_size": 8,
        "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "tie_word_embeddings": true,
    });
    let text = config.to_string();
    let config = ModelConfig::parse(Path::new("config.json"), text.as_bytes());
    let config = config.expect("the config parses");
    assert_eq!(of(&config, Dtype::BF16, None), cost(None));
    let wide = of(&config, Dtype::F32, None);
    assert!(wide.attention.iter().all(|layer| layer.kv_bytes == 64));
    let layout = config.kv_layout(KvDtype::Int8);
    let int8_kv = cost_of(&config, Dtype::BF16, None, &layout);
    // Sixteen bytes and four scales per token, in each layer.
    assert!(
        int8_kv
            .attention
            .iter()
            .all(|layer| layer.kv_bytes == 16 + 4 * 2)
    );
    assert_eq!(int8_kv.matrix_bytes, cost(None).matrix_bytes);
    let int8 = of(&config, Dtype::BF16, Some(Quantization::Int8));
    // One byte per element, and a scale of 4 bytes for each output of q, k, v, o, gate, up, down and the head.
    let scales = 2 * (16 + 8 + 8 + 8 + 16 + 16 + 8) + 100;
    assert_eq!(int8.matrix_bytes, 2 * 768 + 100 * 8 + 4 * scales);
}

#[test]
fn only_the_expected_share_of_experts_is_read() {
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100, "hidden_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "tie_word_embeddings": true, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    });
    let text = config.to_string();
    let config = ModelConfig::parse(Path::new("config.json"), text.as_bytes());
    let cost = of(&config.expect("the config parses"), Dtype::BF16, None);
    // Each expert is as large as the MLP of `cost`; the router's 4x8 elements are f32.
    let (attention, router, expert) = (384, 32, 384);
    let expected = ByProduct {
        f32: 2 * router,
        ..in_bf16(2 * (attention + 2 * expert))
    };
    assert_eq!(cost.layer_elements, expected);
    assert_eq!(
        cost.matrix_bytes,
        2 * (2 * attention + 4 * router) + 2 * 800
    );
    assert_eq!(cost.expert_bytes, 2 * 4 * 2 * expert);
    // One token reads half of the experts, two tokens read three quarters, many tokens read all.
    let read = |tokens| cost.bytes(&[sequence(0, tokens)]) - cost.matrix_bytes;
    let all = cost.expert_bytes;
    assert_eq!([read(1), read(2), read(200)], [all / 2, all * 3 / 4, all]);
}

#[test]
fn a_prefill_computes_every_layer_for_each_token_and_the_head_for_one() {
    let step = [sequence(0, 3)];
    assert_eq!(
        cost(None).weight_ops(&step),
        [0, 2 * (3 * 1536 + 800), 0, 0]
    );
    // Queries attend to 1, 2 and 3 keys, in two layers, over 16 elements, for scores and for values.
    assert_eq!(cost(None).attention_ops(&step), (1 + 2 + 3) * 2 * 16 * 4);
    assert_eq!(cost(None).bytes(&step), (1536 + 800) * 2);
}

#[test]
fn decodes_read_their_own_cache_and_share_the_weights() {
    let step = [sequence(10, 1), sequence(20, 1)];
    assert_eq!(cost(None).bytes(&step), (1536 + 800) * 2 + 30 * 2 * 32);
    assert_eq!(
        cost(None).weight_ops(&step),
        [0, 2 * 2 * (1536 + 800), 0, 0]
    );
    assert_eq!(cost(None).attention_ops(&step), (11 + 21) * 2 * 64);
}

#[test]
fn windows_limit_the_attended_and_read_keys() {
    let windowed = cost(Some(4));
    assert_eq!(
        windowed.bytes(&[sequence(10, 1)]),
        (1536 + 800) * 2 + 3 * 2 * 32
    );
    for (step, seen) in [
        (sequence(0, 3), 1 + 2 + 3),
        (sequence(0, 6), 1 + 2 + 3 + 4 + 4 + 4),
        (sequence(2, 3), 3 + 4 + 4),
        (sequence(10, 2), 4 + 4),
        (sequence(4, 1), 4),
    ] {
        assert_eq!(query_key_pairs(step, Some(4)), seen, "{step:?}");
    }
    assert_eq!(query_key_pairs(sequence(2, 3), None), 3 + 4 + 5);
}

#[test]
fn layers_count_with_their_own_key_and_value_widths() {
    let pages = PagedKv {
        heads: 1,
        key_dim: 6,
        values: Values::InKeys { dim: 4 },
        labels: 0,
        dtype: KvDtype::BF16,
    };
    let mut cost = cost(None);
    cost.attention[1] = AttentionCost::new(&pages, 4, Some(8));
    let step = [sequence(10, 1)];
    assert_eq!(cost.bytes(&step), (1536 + 800) * 2 + 10 * 32 + 7 * 12);
    assert_eq!(cost.attention_ops(&step), 2 * (11 * 32 + 8 * 40));
    cost.state_bytes = 1000;
    let both = [sequence(10, 1), sequence(0, 5)];
    assert_eq!(
        cost.bytes(&both),
        (1536 + 800) * 2 + 10 * 32 + 7 * 12 + 2 * 2 * 1000
    );
}

#[test]
fn sparse_queries_read_labels_and_the_tokens_that_they_choose() {
    let mut cost = cost(None);
    cost.attention[1].sparse = Some(SparseCost {
        first: 10,
        chosen_tokens: 4,
        label_bytes: 8,
        label_elements: 8,
    });
    let (dense, weights) = (cost.attention[0], (1536 + 800) * 2);
    assert_eq!(cost.bytes(&[sequence(9, 1)]), weights + 2 * 9 * 32);
    assert_eq!(
        cost.bytes(&[sequence(10, 1)]),
        weights + 10 * 32 + 3 * 32 + 10 * 8
    );
    // The first query of the chunk is dense.
    assert_eq!(cost.bytes(&[sequence(9, 2)]), weights + 2 * 9 * 32 + 9 * 8);
    let step = sequence(9, 3);
    assert_eq!(
        cost.attention_ops(&[step]),
        2 * (dense.elements(step) + 10 * 32 + (11 + 12) * 8 + 2 * 4 * 32)
    );
}

#[test]
fn states_are_multiplied_once_per_token_and_moved_twice_per_step() {
    let config = json!({
        "architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 100, "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "tie_word_embeddings": true, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    });
    let text = config.to_string();
    let config = ModelConfig::parse(Path::new("config.json"), text.as_bytes());
    let cost = of(&config.expect("the config parses"), Dtype::BF16, None);
    let (channels, matrices) = (2 * 2 * 8 + 4 * 16, 4 * 8 * 16);
    assert_eq!(cost.state_bytes, 3 * 4 * (matrices + 3 * channels));
    let step = [sequence(10, 2), sequence(0, 5)];
    assert_eq!(
        cost.state_ops(&step),
        7 * 3 * (7 * matrices + 2 * 4 * channels)
    );
    let stateless = ModelCost {
        state_bytes: 0,
        ..cost.clone()
    };
    assert_eq!(
        cost.bytes(&step) - stateless.bytes(&step),
        2 * 2 * cost.state_bytes
    );
}

#[test]
fn the_larger_of_reading_and_computing_decides() {
    let step = [sequence(0, 3)];
    let peak = |read_bytes_per_s, weight_ops_per_s| Peak {
        read_bytes_per_s,
        weight_ops_per_s: ByProduct::all(weight_ops_per_s),
        attention_ops_per_s: 768.0,
        state_ops_per_s: 10.0,
    };
    let seconds = |peak| cost(None).step_seconds(&step, &peak);
    assert_eq!(seconds(peak(467.2, 1e12)), 10.0);
    assert_eq!(seconds(peak(1e12, 5408.0)), 2.0 + 1.0);
}

#[test]
fn the_floors_of_a_600_million_parameter_model_match_manual_calculations() {
    let qwen = ModelCost {
        layer_elements: in_bf16(28 * 15_728_640),
        head_elements: in_bf16(151_936 * 1024),
        matrix_bytes: 2 * (28 * 15_728_640 + 151_936 * 1024),
        expert_bytes: 0,
        experts: None,
        attention: vec![
            AttentionCost {
                kv_bytes: 2 * 1024 * 2,
                pair_elements: 2 * 2048,
                window: None,
                sparse: None,
            };
            28
        ],
        state_bytes: 0,
        state_ops: 0,
    };
    let peak = Peak {
        read_bytes_per_s: 47e9,
        weight_ops_per_s: ByProduct::all(442e9),
        attention_ops_per_s: 442e9,
        state_ops_per_s: 221e9,
    };
    let prefill = 512.0 / qwen.step_seconds(&[sequence(0, 512)], &peak);
    assert_eq!(prefill.round(), 470.0);
    let decode = qwen.step_seconds(&[sequence(512, 1)], &peak).recip();
    assert_eq!(decode.round(), 38.0);
    let steps = [512, 513].map(|context| qwen.step_seconds(&[sequence(context, 1)], &peak));
    let both = qwen.decode_seconds(1, 512, 3, &peak);
    assert!((both - steps.iter().sum::<f64>()).abs() < 1e-12);
    assert_eq!(qwen.decode_seconds(4, 512, 1, &peak), 0.0);
}

#[test]
fn block_quantised_matrices_count_with_their_file_size_and_product() {
    let matrix = |name: &str, elements, bytes, product| LoadedMatrix {
        name: name.to_owned(),
        elements,
        bytes,
        decoded_bytes: 2 * elements,
        product,
        inputs_per_scale: 1,
    };
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 100, "hidden_size": 8,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "tie_word_embeddings": true,
    });
    let text = config.to_string();
    let config = ModelConfig::parse(Path::new("config.json"), text.as_bytes());
    let config = config.expect("the config parses");
    let layout = config.kv_layout(Dtype::BF16);
    let matrices = [
        matrix("model.embed_tokens.weight", 800, 656, WeightProduct::Blocks),
        matrix(
            "model.layers.0.mlp.up_proj.weight",
            512,
            288,
            WeightProduct::Blocks,
        ),
        matrix(
            "model.layers.0.mlp.gate_proj.weight",
            512,
            1024,
            WeightProduct::Bf16,
        ),
        matrix(
            "model.layers.0.mlp.down_proj.weight",
            512,
            2048,
            WeightProduct::F32,
        ),
    ];
    let of = |bytes| ModelCost::new(&config, &matrices, bytes, &layout);
    let cost = of(|matrix| matrix.bytes);
    assert_eq!(cost.matrix_bytes, 656 + 288 + 1024 + 2048);
    assert_eq!(
        of(|matrix| matrix.decoded_bytes).matrix_bytes,
        2 * (800 + 3 * 512)
    );
    let step = [sequence(0, 3)];
    let ops = [2 * 3 * 512, 2 * 3 * 512, 0, 2 * (3 * 512 + 800)];
    assert_eq!(cost.weight_ops(&step), ops);
    let peak = Peak {
        read_bytes_per_s: 1e12,
        weight_ops_per_s: ByProduct {
            f32: 1.0,
            bf16: 2.0,
            int8: 1e12,
            blocks: 4.0,
        },
        attention_ops_per_s: 1e12,
        state_ops_per_s: 1e12,
    };
    let seconds = ops[0] as f64 + ops[1] as f64 / 2.0 + ops[3] as f64 / 4.0;
    assert!((cost.step_seconds(&step, &peak) - seconds).abs() < 1e-6);
}
