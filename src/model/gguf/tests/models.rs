//! Tests of configurations and weights from GGUF.

use super::*;
use crate::config::BiasConfig;
use crate::layer_spec::QkNorm;
use crate::rope::RopeScaling;
use crate::text::FimIds;
use souffleur_kernels::dtype::Dtype;

const VOCAB: usize = 5;
const HIDDEN: usize = 4;
const MLP: usize = 6;

/// A tensor whose elements are numbered from 0.
fn numbered(name: &str, shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    let values: Vec<f32> = (0..elements).map(|element| element as f32).collect();
    Tensor::f32(name, shape, &values)
}

/// Metadata of a model with one layer, one K/V head and two query heads of two elements.
pub fn described(architecture: &str) -> File {
    let key = |name: &str| format!("{architecture}.{name}");
    File::default()
        .text("general.architecture", architecture)
        .size(&key("block_count"), 1)
        .size(&key("context_length"), 64)
        .size(&key("embedding_length"), HIDDEN)
        .size(&key("feed_forward_length"), MLP)
        .size(&key("attention.head_count"), 2)
        .size(&key("attention.head_count_kv"), 1)
        .number(&key("attention.layer_norm_rms_epsilon"), 1e-5)
}

pub fn with_tensors(file: File, names: &[(&str, &[usize])]) -> File {
    names.iter().fold(file, |file, (name, shape)| {
        file.tensor(numbered(name, shape))
    })
}

pub const COMMON: [(&str, &[usize]); 8] = [
    ("token_embd.weight", &[VOCAB, HIDDEN]),
    ("blk.0.attn_norm.weight", &[HIDDEN]),
    ("blk.0.attn_output.weight", &[HIDDEN, HIDDEN]),
    ("blk.0.ffn_norm.weight", &[HIDDEN]),
    ("blk.0.ffn_gate.weight", &[MLP, HIDDEN]),
    ("blk.0.ffn_up.weight", &[MLP, HIDDEN]),
    ("blk.0.ffn_down.weight", &[HIDDEN, MLP]),
    ("output_norm.weight", &[HIDDEN]),
];
pub const QKV: [(&str, &[usize]); 3] = [
    ("blk.0.attn_q.weight", &[4, HIDDEN]),
    ("blk.0.attn_k.weight", &[2, HIDDEN]),
    ("blk.0.attn_v.weight", &[2, HIDDEN]),
];

pub fn tiny_llama() -> File {
    let file = described("llama")
        .pair(
            "tokenizer.ggml.tokens",
            Value::Texts(vec!["a".to_owned(); VOCAB]),
        )
        .pair("tokenizer.ggml.token_type", Value::I32s(vec![1; VOCAB]));
    with_tensors(with_tensors(file, &COMMON), &QKV)
}

fn without(mut file: File, name: &str) -> File {
    file.tensors.retain(|tensor| tensor.name != name.as_bytes());
    file
}

pub fn config(file: &File) -> Result<ModelConfig, LoadError> {
    super::super::config(&open(file)?)
}

fn weights(file: &File) -> Result<(ModelConfig, Weights), LoadError> {
    let gguf = open(file)?;
    let config = super::super::config(&gguf)?;
    let weights = super::super::weights(gguf, &config)?;
    Ok((config, weights))
}

fn values(weights: &Weights, name: &str, shape: &[usize]) -> Vec<f32> {
    weights.tensor(name, shape).expect("found").to_f32()
}

#[test]
fn sizes_come_from_metadata_and_the_rest_from_tensors() {
    let config = config(&tiny_llama()).expect("supported");
    assert_eq!(config.architecture.name(), "LlamaForCausalLM");
    assert_eq!((config.vocab_size, config.head_dim), (VOCAB, 2));
    assert_eq!(config.rms_norm_eps, 1e-5);
    assert!(config.tie_word_embeddings);
    assert_eq!(config.qk_norm, QkNorm::None);
    assert_eq!(
        config.bias,
        BiasConfig {
            qkv: false,
            o: false,
            mlp: false
        }
    );
    assert_eq!(
        (config.rope.theta, &config.rope.scaling),
        (10_000.0, &RopeScaling::Default)
    );
    assert_eq!(config.context_tokens(), 64);
    let untied = tiny_llama().tensor(numbered("output.weight", &[VOCAB, HIDDEN]));
    let (config, weights) = weights(&untied).expect("supported");
    assert!(!config.tie_word_embeddings);
    weights.check(&config.tensors()).expect("complete");
}

#[test]
fn paired_rows_of_llama_are_reordered_and_others_are_not() {
    let bias = [
        ("blk.0.attn_q.bias", 4),
        ("blk.0.attn_k.bias", 2),
        ("blk.0.attn_v.bias", 2),
    ];
    let mut file = tiny_llama();
    for (name, width) in bias {
        file = file.tensor(numbered(name, &[width]));
    }
    let wide = file.size("llama.attention.key_length", 4);
    refused(
        weights(&wide),
        "tensor blk.0.attn_q.weight has shape [4, 4], the configuration expects [8, 4]",
    );
    let one_head = {
        let mut file = tiny_llama();
        file.pairs
            .retain(|(key, _)| !key.starts_with(b"llama.attention.head_count"));
        file = file.size("llama.attention.head_count", 1);
        for tensor in &mut file.tensors {
            if tensor.name.starts_with(b"blk.0.attn_k") || tensor.name.starts_with(b"blk.0.attn_v")
            {
                let name = String::from_utf8(tensor.name.clone()).expect("ASCII");
                *tensor = numbered(&name, &[4, HIDDEN]);
            }
        }
        file.tensor(numbered("blk.0.attn_q.bias", &[4]))
            .tensor(numbered("blk.0.attn_k.bias", &[4]))
            .tensor(numbered("blk.0.attn_v.bias", &[4]))
    };
    let (config, weights) = weights(&one_head).expect("supported");
    assert_eq!((config.head_dim, config.num_key_value_heads), (4, 1));
    // Rows 0, 1, 2 and 3 of the file are rows 0, 2, 1 and 3 of a head.
    let reordered = [0.0, 2.0, 1.0, 3.0];
    let at = |part: &str| format!("model.layers.0.self_attn.{part}");
    for part in ["q_proj", "k_proj"] {
        assert_eq!(
            values(&weights, &at(&format!("{part}.bias")), &[4]),
            reordered
        );
        let rows = values(&weights, &at(&format!("{part}.weight")), &[4, HIDDEN]);
        let firsts: Vec<f32> = rows.chunks(HIDDEN).map(|row| row[0] / 4.0).collect();
        assert_eq!(firsts, reordered);
    }
    let v = values(&weights, &at("v_proj.bias"), &[4]);
    assert_eq!(v, [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn a_fused_qkv_tensor_is_split_in_three() {
    let mut file = with_tensors(described("qwen2"), &COMMON);
    file = file
        .tensor(numbered("blk.0.attn_qkv.weight", &[8, HIDDEN]))
        .tensor(numbered("blk.0.attn_qkv.bias", &[8]));
    let (config, weights) = weights(&file).expect("supported");
    assert!(config.bias.qkv);
    let at = |part: &str| format!("model.layers.0.self_attn.{part}");
    assert_eq!(
        values(&weights, &at("q_proj.bias"), &[4]),
        [0.0, 1.0, 2.0, 3.0]
    );
    assert_eq!(values(&weights, &at("k_proj.bias"), &[2]), [4.0, 5.0]);
    assert_eq!(values(&weights, &at("v_proj.bias"), &[2]), [6.0, 7.0]);
    let k = values(&weights, &at("k_proj.weight"), &[2, HIDDEN]);
    assert_eq!(k, [16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0]);
    let types = weights.types();
    assert_eq!(
        (types.len(), types[0].name.as_str(), types[0].tensors),
        (1, "F32", 10)
    );
    file.tensors.last_mut().expect("the file has tensors").sizes = vec![7];
    refused(
        self::weights(&file),
        "tensor blk.0.attn_qkv.bias has shape [7], the configuration expects [8]",
    );
}

#[test]
fn tensor_errors_have_the_names_in_the_file() {
    refused(
        weights(&without(tiny_llama(), "blk.0.ffn_up.weight")),
        "m.gguf: tensor blk.0.ffn_up.weight is missing, expected shape [6, 4]",
    );
    refused(
        config(&without(tiny_llama(), "token_embd.weight")),
        "token_embd.weight is not in the file",
    );
    let bias = tiny_llama().tensor(numbered("blk.0.attn_q.bias", &[4]));
    refused(
        weights(&bias),
        "tensor blk.0.attn_k.bias is missing, expected shape [2]",
    );
    let more = tiny_llama().tensor(numbered("blk.0.attn_sinks.weight", &[2]));
    refused(
        weights(&more),
        "tensor blk.0.attn_sinks.weight is not part of a model",
    );
    let qwen2 = with_tensors(with_tensors(described("qwen2"), &COMMON), &QKV);
    refused(weights(&qwen2), "tensor blk.0.attn_q.bias is missing");
    let qwen3 = with_tensors(with_tensors(described("qwen3"), &COMMON), &QKV);
    refused(
        weights(&qwen3),
        "tensor blk.0.attn_q_norm.weight is missing, expected shape [2]",
    );
    let mut integers = tiny_llama();
    integers.tensors[4].type_id = 26;
    refused(
        weights(&integers),
        "tensor blk.0.ffn_gate.weight has type I32, supported: F32, F16, BF16",
    );
}

#[test]
fn rotations_are_scaled_by_keys_or_by_a_tensor() {
    let scaling = |file: File| config(&file).map(|config| config.rope.scaling);
    let linear = tiny_llama().number("llama.rope.scaling.factor", 4.0);
    assert_eq!(
        scaling(linear.clone()).expect("supported"),
        RopeScaling::Linear { factor: 4.0 }
    );
    let none = linear.text("llama.rope.scaling.type", "none");
    assert_eq!(scaling(none).expect("supported"), RopeScaling::Default);
    let old = tiny_llama().number("llama.rope.scale_linear", 2.0);
    assert_eq!(
        scaling(old).expect("supported"),
        RopeScaling::Linear { factor: 2.0 }
    );
    let yarn = tiny_llama()
        .text("llama.rope.scaling.type", "yarn")
        .number("llama.rope.scaling.factor", 8.0)
        .size("llama.rope.scaling.original_context_length", 32);
    let RopeScaling::Yarn(read) = scaling(yarn.clone()).expect("supported") else {
        panic!("yarn");
    };
    assert_eq!(
        (read.factor, read.beta_fast, read.beta_slow),
        (8.0, 32.0, 1.0)
    );
    assert_eq!(read.original_max_position_embeddings, 32);
    assert_eq!(config(&yarn).expect("supported").context_tokens(), 256);
    let by_tensor = tiny_llama().tensor(Tensor::f32("rope_freqs.weight", &[1], &[8.0]));
    assert_eq!(
        scaling(by_tensor.clone()).expect("supported"),
        RopeScaling::Divided([8.0].into())
    );
    assert!(weights(&by_tensor).is_ok());
    let both = yarn.tensor(Tensor::f32("rope_freqs.weight", &[1], &[8.0]));
    refused(
        scaling(both),
        "and the tensor rope_freqs.weight both scale the rotation",
    );
    for (shape, divisor, expected) in [
        (
            2,
            1.0,
            "tensor rope_freqs.weight has type F32 and shape [2], expected F32 and [1]",
        ),
        (
            1,
            0.0,
            "tensor rope_freqs.weight holds 0, expected numbers from 1e-6",
        ),
        (1, f32::NAN, "tensor rope_freqs.weight holds NaN"),
    ] {
        let tensor = Tensor::f32("rope_freqs.weight", &[shape], &vec![divisor; shape]);
        refused(scaling(tiny_llama().tensor(tensor)), expected);
    }
}

#[test]
fn eos_tokens_come_from_keys_and_control_tokens() {
    let tokens = ["<s>", "</s>", "<|im_end|>", "<|eot_id|>", "x"].map(str::to_owned);
    let file = with_tensors(with_tensors(described("llama"), &COMMON), &QKV)
        .pair("tokenizer.ggml.model", Value::Text("llama".to_owned()))
        .pair("tokenizer.ggml.tokens", Value::Texts(tokens.to_vec()))
        .pair(
            "tokenizer.ggml.token_type",
            Value::I32s(vec![3, 3, 1, 3, 1]),
        )
        .size("tokenizer.ggml.bos_token_id", 0)
        .size("tokenizer.ggml.eos_token_id", 4)
        .size("tokenizer.ggml.eom_token_id", 1);
    let config = config(&file).expect("supported");
    assert_eq!(config.bos_token_id, Some(0));
    assert_eq!(config.eos_token_ids, [1, 3, 4]);
}

#[test]
fn eos_tokens_are_read_without_a_tokenizer_too() {
    let file = with_tensors(with_tensors(described("llama"), &COMMON), &QKV)
        .size("tokenizer.ggml.bos_token_id", 1)
        .size("tokenizer.ggml.eos_token_id", 2)
        .size("tokenizer.ggml.eot_token_id", VOCAB - 1)
        .size("tokenizer.ggml.eom_token_id", VOCAB);
    let ends = |file: &File| config(file).expect("supported").eos_token_ids;
    assert_eq!(ends(&file), [2, 4]);
    let named = file.clone().text("tokenizer.ggml.model", "no_vocab");
    assert_eq!(ends(&named), [2, 4]);
    let tokens = ["<s>", "</s>", "a", "<|eot_id|>", "b"].map(str::to_owned);
    let with_tokens = file
        .pair("tokenizer.ggml.tokens", Value::Texts(tokens.to_vec()))
        .pair(
            "tokenizer.ggml.token_type",
            Value::I32s(vec![3, 3, 1, 3, 1]),
        );
    assert_eq!(ends(&with_tokens), [1, 2, 3, 4]);
}

#[test]
fn marks_of_a_gap_come_from_keys_of_both_kinds() {
    let file = with_tensors(with_tensors(described("llama"), &COMMON), &QKV)
        .text("tokenizer.ggml.model", "gpt2")
        .size("tokenizer.ggml.fim_pre_token_id", 1)
        .size("tokenizer.ggml.prefix_token_id", 9)
        .size("tokenizer.ggml.suffix_token_id", 2)
        .size("tokenizer.ggml.fim_sep_token_id", 3);
    let gguf = open(&file).expect("valid");
    let fields = vocabulary(&gguf).expect("readable");
    let expected = FimIds {
        prefix: Some(1),
        suffix: Some(2),
        separator: Some(3),
        ..FimIds::default()
    };
    assert_eq!(fields.map(|fields| fields.fim), Some(expected));
}

#[test]
fn the_matrices_determine_the_element_type() {
    let dtype = |edit: &[(usize, u32)]| {
        let mut file = tiny_llama();
        for &(tensor, type_id) in edit {
            let tensor = &mut file.tensors[tensor];
            tensor.type_id = type_id;
            tensor.data.truncate(tensor.data.len() / 2);
        }
        open(&file).expect("valid").dtype()
    };
    assert_eq!(dtype(&[]), Dtype::F32);
    assert_eq!(dtype(&[(1, 1)]), Dtype::F32);
    assert_eq!(dtype(&[(2, 1)]), Dtype::F16);
    assert_eq!(dtype(&[(2, 1), (4, 30)]), Dtype::BF16);
    let blocks = File::default()
        .tensor(Tensor::new("a", 8, &[2, 32], vec![0; 68]))
        .tensor(Tensor::f32("b", &[2, 2], &[0.0; 4]));
    assert_eq!(open(&blocks).expect("valid").dtype(), Dtype::BF16);
}
