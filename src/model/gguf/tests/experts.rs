//! Tests of MoE in GGUF: layers with experts, rows of their matrices in stacks, rejected files.

use super::models::{config, described};
use super::*;
use souffleur_kernels::routing::Routing;

const VOCAB: usize = 5;
const HIDDEN: usize = 4;
const WIDTH: usize = 3;
const EXPERTS: usize = 2;

/// A tensor whose elements are numbered from 0.
fn numbered(name: &str, shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    let values: Vec<f32> = (0..elements).map(|element| element as f32).collect();
    Tensor::f32(name, shape, &values)
}

fn tiny(architecture: &str) -> File {
    let key = |name: &str| format!("{architecture}.{name}");
    let file = described(architecture)
        .size(&key("expert_count"), EXPERTS)
        .size(&key("expert_used_count"), 1)
        .size(&key("expert_feed_forward_length"), WIDTH);
    [
        ("token_embd.weight", &[VOCAB, HIDDEN][..]),
        ("blk.0.attn_norm.weight", &[HIDDEN]),
        ("blk.0.attn_q.weight", &[4, HIDDEN]),
        ("blk.0.attn_k.weight", &[2, HIDDEN]),
        ("blk.0.attn_v.weight", &[2, HIDDEN]),
        ("blk.0.attn_output.weight", &[HIDDEN, HIDDEN]),
        ("blk.0.ffn_norm.weight", &[HIDDEN]),
        ("blk.0.ffn_gate_inp.weight", &[EXPERTS, HIDDEN]),
        ("blk.0.ffn_gate_exps.weight", &[EXPERTS, WIDTH, HIDDEN]),
        ("blk.0.ffn_up_exps.weight", &[EXPERTS, WIDTH, HIDDEN]),
        ("blk.0.ffn_down_exps.weight", &[EXPERTS, HIDDEN, WIDTH]),
        ("output_norm.weight", &[HIDDEN]),
    ]
    .into_iter()
    .fold(file, |file, (name, shape)| {
        file.tensor(numbered(name, shape))
    })
}

fn weights(file: &File) -> Result<Weights, LoadError> {
    let gguf = open(file)?;
    let config = super::super::config(&gguf)?;
    super::super::weights(gguf, &config)
}

fn row(weights: &Weights, name: &str, shape: [usize; 2], row: usize) -> Vec<f32> {
    let view = weights.tensor(name, &shape).expect("the tensor exists");
    let mut values = vec![0.0; shape[1]];
    view.read_row(row, &mut values);
    values
}

#[test]
fn files_of_llama_with_experts_are_mixtral() {
    let config = config(&tiny("llama")).expect("supported");
    assert_eq!(config.architecture.name(), "MixtralForCausalLM");
    let experts = config.experts.as_ref().expect("has experts");
    assert_eq!(experts.routing, Routing::softmax(EXPERTS, 1, true));
    assert_eq!(
        (experts.width, experts.layers.as_slice()),
        (WIDTH, &[true][..])
    );
    let weights = weights(&tiny("llama")).expect("valid");
    let name =
        |expert, part| format!("model.layers.0.block_sparse_moe.experts.{expert}.{part}.weight");
    // The rows of a stack's experts are numbered consecutively.
    let first = |row: usize, width: usize| (row * width) as f32;
    assert_eq!(
        row(&weights, &name(1, "w1"), [WIDTH, HIDDEN], 2)[0],
        first(WIDTH + 2, HIDDEN)
    );
    assert_eq!(
        row(&weights, &name(0, "w3"), [WIDTH, HIDDEN], 1)[0],
        first(1, HIDDEN)
    );
    assert_eq!(
        row(&weights, &name(1, "w2"), [HIDDEN, WIDTH], 3)[0],
        first(HIDDEN + 3, WIDTH)
    );
    assert!(
        weights
            .tensor(
                "model.layers.0.block_sparse_moe.gate.weight",
                &[EXPERTS, HIDDEN]
            )
            .is_ok()
    );
}

#[test]
fn gate_and_up_may_be_fused_in_one_stack() {
    let mut file = tiny("llama");
    file.tensors.retain(|tensor| {
        let name = String::from_utf8_lossy(&tensor.name).into_owned();
        !name.contains("ffn_gate_exps") && !name.contains("ffn_up_exps")
    });
    let both = numbered(
        "blk.0.ffn_gate_up_exps.weight",
        &[EXPERTS, 2 * WIDTH, HIDDEN],
    );
    let weights = weights(&file.tensor(both)).expect("valid");
    let name =
        |expert, part| format!("model.layers.0.block_sparse_moe.experts.{expert}.{part}.weight");
    for (expert, part, rows) in [(0, "w1", 0), (0, "w3", 3), (1, "w1", 6), (1, "w3", 9)] {
        let got = row(&weights, &name(expert, part), [WIDTH, HIDDEN], 2)[0];
        assert_eq!(got, ((rows + 2) * HIDDEN) as f32, "{expert} {part}");
    }
}

#[test]
fn layers_without_a_router_have_an_mlp() {
    let mut file = tiny("qwen3moe").size("qwen3moe.block_count", 2);
    file.pairs.remove(
        file.pairs
            .iter()
            .position(|pair| pair.0 == b"qwen3moe.block_count")
            .expect("the key exists"),
    );
    let config = config(&file).expect("supported");
    assert_eq!(config.architecture.name(), "Qwen3MoeForCausalLM");
    let experts = config.experts.expect("has experts");
    assert_eq!(experts.layers, [true, false]);
    assert_eq!(experts.routing, Routing::softmax(EXPERTS, 1, true));
}

#[test]
fn unsupported_experts_are_rejected_by_key_or_tensor() {
    for (key, value, expected) in [
        (
            "expert_gating_func",
            Value::U32(2),
            "qwen3moe.expert_gating_func is 2, which is not supported",
        ),
        (
            "expert_weights_scale",
            Value::F32(2.5),
            "qwen3moe.expert_weights_scale is 2.5",
        ),
        (
            "expert_shared_count",
            Value::U32(1),
            "qwen3moe.expert_shared_count is 1",
        ),
        (
            "expert_group_count",
            Value::U32(4),
            "qwen3moe.expert_group_count is 4",
        ),
    ] {
        let file = tiny("qwen3moe").pair(&format!("qwen3moe.{key}"), value);
        refused(config(&file), expected);
    }
    let all_used = described("qwen3moe")
        .size("qwen3moe.expert_count", 2)
        .size("qwen3moe.expert_used_count", 3);
    refused(
        config(&all_used),
        "qwen3moe.expert_used_count is 3, more than qwen3moe.expert_count, 2",
    );
    let dense = described("qwen3")
        .size("qwen3.expert_count", 2)
        .size("qwen3.expert_used_count", 1);
    refused(
        config(&dense),
        "qwen3.expert_count is 2: mixtures of experts of this architecture",
    );
    let mut without = tiny("qwen3moe");
    without
        .tensors
        .retain(|tensor| tensor.name != b"blk.0.ffn_gate_inp.weight");
    refused(
        config(&without),
        "qwen3moe.expert_count is 2, but no layer has a router",
    );
    let mut short = tiny("llama");
    short
        .tensors
        .retain(|tensor| tensor.name != b"blk.0.ffn_down_exps.weight");
    let short = short.tensor(numbered(
        "blk.0.ffn_down_exps.weight",
        &[EXPERTS, HIDDEN, WIDTH + 1],
    ));
    let error = weights(&short)
        .err()
        .expect("another width fails")
        .to_string();
    assert!(
        error.contains("ffn_down_exps") && error.contains("[2, 4, 3]"),
        "{error}"
    );
}
