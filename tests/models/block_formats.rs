//! Tests that GGUF files with one block type or a common mix give the same bits in every batch and chunk size.

use std::path::Path;

use half::f16;
use serde_json::json;
use souffleur_kernels::blocks::BlockType;

use crate::common::{load_from, options};
use crate::drafts::check_drafts;
use crate::gguf_files::of_config;
use crate::gguf_files::writer::Tensor;
use crate::invariance::{PROMPT_TOKENS, VOCAB, alone, alone_read_from, among_others, assert_same};
use crate::scripted_drafts::Script;

/// A multiple of the size of superblocks.
const HIDDEN: usize = 256;
const INNER: usize = 512;
const HEAD: usize = 32;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const LAYERS: usize = 2;

/// The block type of each matrix, by its name without the layer.
type Mix<'a> = &'a dyn Fn(&str) -> BlockType;

/// Q4_K_M: more bits for values, down projections and the output.
fn medium(name: &str) -> BlockType {
    match name {
        "attn_v" | "ffn_down" | "token_embd" => BlockType::Q6K,
        _ => BlockType::Q4K,
    }
}

/// Superblocks, and types that converters fall back to for narrow rows.
fn fallbacks(name: &str) -> BlockType {
    match name {
        "attn_q" => BlockType::Q5_0,
        "attn_k" => BlockType::Q8_0,
        "attn_v" => BlockType::Q5_1,
        "ffn_gate" => BlockType::Iq4Xs,
        "ffn_up" => BlockType::Iq4Nl,
        _ => BlockType::Q4K,
    }
}

/// The offsets of a block's f16 scales, and the magnitude of its values.
fn scales(block: BlockType) -> (&'static [usize], f32) {
    match block {
        BlockType::Q4_0 => (&[0], 8.0),
        BlockType::Q4_1 => (&[0, 2], 8.0),
        BlockType::Q5_0 => (&[0], 16.0),
        BlockType::Q5_1 => (&[0, 2], 16.0),
        BlockType::Q8_0 | BlockType::Iq4Nl => (&[0], 100.0),
        BlockType::Q2K => (&[80, 82], 24.0),
        BlockType::Q3K => (&[108], 64.0),
        BlockType::Q4K => (&[0, 2], 240.0),
        BlockType::Q5K => (&[0, 2], 480.0),
        BlockType::Q6K => (&[208], 2000.0),
        BlockType::Iq4Xs => (&[0], 2000.0),
        BlockType::Mxfp4 => (&[], 1.0),
        BlockType::Affine4 => unreachable!("no file has this type"),
    }
}

/// Blocks of pseudo-random bytes with small scales; a type without f16 scales has an exponent in the first byte.
fn random_blocks(block: BlockType, [outputs, inputs]: [usize; 2], seed: u32) -> Vec<u8> {
    let byte = |i: usize| {
        let hash = (i as u32 ^ seed.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b9);
        (hash ^ hash >> 13) as u8
    };
    let mut bytes: Vec<u8> = (0..outputs * block.row_bytes(inputs)).map(byte).collect();
    let (halves, range) = scales(block);
    for block in bytes.chunks_exact_mut(block.bytes()) {
        for (i, at) in halves.iter().enumerate() {
            let signed = if i == 0 { 0.06 } else { -0.06 };
            block[*at..at + 2].copy_from_slice(&f16::from_f32(signed / range).to_le_bytes());
        }
        if halves.is_empty() {
            block[0] = 121 + block[0] % 4;
        }
    }
    bytes
}

#[derive(Clone, Copy)]
enum FeedForward {
    Mlp,
    Experts,
}

/// Experts of a layer, and the number per token.
const EXPERTS: usize = 4;
const USED: usize = 2;
const EXPERT_WIDTH: usize = 256;

fn config_of(feed_forward: FeedForward) -> serde_json::Value {
    let mut config = json!({
        "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "eos_token_id": 0,
    });
    if let FeedForward::Experts = feed_forward {
        config["architectures"] = json!(["Qwen3MoeForCausalLM"]);
        config["num_experts"] = json!(EXPERTS);
        config["num_experts_per_tok"] = json!(USED);
        config["moe_intermediate_size"] = json!(EXPERT_WIDTH);
    }
    config
}

fn write(path: &Path, mix: Mix<'_>, feed_forward: FeedForward) {
    let config = config_of(feed_forward);
    let mut file = of_config(&config);
    let mut seed = 0;
    let mut matrix = |layer: &str, name: &str, shape: &[usize]| {
        seed += 1;
        let block = mix(name);
        let (inputs, outer) = shape.split_last().unwrap();
        let data = random_blocks(block, [outer.iter().product(), *inputs], seed);
        Tensor::new(
            &format!("{layer}{name}.weight"),
            block.gguf_id().unwrap(),
            shape,
            data,
        )
    };
    let ones = |name: String, size: usize| Tensor::f32(&name, &[size], &vec![1.0; size]);
    let mut tensors = vec![
        matrix("", "token_embd", &[VOCAB as usize, HIDDEN]),
        ones("output_norm.weight".to_owned(), HIDDEN),
    ];
    for layer in 0..LAYERS {
        let layer = format!("blk.{layer}.");
        for (name, size) in [
            ("attn_norm", HIDDEN),
            ("ffn_norm", HIDDEN),
            ("attn_q_norm", HEAD),
            ("attn_k_norm", HEAD),
        ] {
            tensors.push(ones(format!("{layer}{name}.weight"), size));
        }
        for (name, shape) in [
            ("attn_q", [HEADS * HEAD, HIDDEN]),
            ("attn_k", [KV_HEADS * HEAD, HIDDEN]),
            ("attn_v", [KV_HEADS * HEAD, HIDDEN]),
            ("attn_output", [HIDDEN, HEADS * HEAD]),
        ] {
            tensors.push(matrix(&layer, name, &shape));
        }
        let inner = match feed_forward {
            FeedForward::Mlp => INNER,
            FeedForward::Experts => EXPERT_WIDTH,
        };
        let parts = [
            ("ffn_gate", [inner, HIDDEN]),
            ("ffn_up", [inner, HIDDEN]),
            ("ffn_down", [HIDDEN, inner]),
        ];
        for (name, [outputs, inputs]) in parts {
            tensors.push(match feed_forward {
                FeedForward::Mlp => matrix(&layer, name, &[outputs, inputs]),
                FeedForward::Experts => {
                    matrix(&layer, &format!("{name}_exps"), &[EXPERTS, outputs, inputs])
                }
            });
        }
        if let FeedForward::Experts = feed_forward {
            let router: Vec<f32> = (0..EXPERTS * HIDDEN)
                .map(|i| ((i * 7919) % 201) as f32 / 500.0 - 0.2)
                .collect();
            let name = format!("{layer}ffn_gate_inp.weight");
            tensors.push(Tensor::f32(&name, &[EXPERTS, HIDDEN], &router));
        }
    }
    for tensor in tensors {
        file = file.tensor(tensor);
    }
    std::fs::write(path, file.bytes()).unwrap();
}

fn check(path: &Path, what: &str) {
    let expected = alone(&mut load_from(path, &options()), 1, PROMPT_TOKENS);
    let differ = expected.values().any(|logits| logits != &expected[&0]);
    let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
    assert!(differ && expected.values().flatten().all(finite), "{what}");
    for chunk in [1, 7] {
        let got = alone(&mut load_from(path, &options()), 1, chunk);
        assert_same(&got, &expected, &format!("{what}, chunks of {chunk}"));
    }
    let got = among_others(&mut load_from(path, &options()));
    assert_same(&got, &expected, &format!("{what}, among others"));
    let got = alone_read_from(&mut load_from(path, &options()), 1, 20, 70);
    assert_same(&got, &expected, &format!("{what}, read from 70"));
    check_drafts(path, &options(), Script::Random(0.8), what);
}

#[test]
fn every_type_of_blocks_is_invariant() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    for block in BlockType::ALL {
        write(&path, &|_| block, FeedForward::Mlp);
        check(&path, block.name());
    }
}

#[test]
fn experts_are_invariant_in_every_type_of_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    for block in BlockType::ALL {
        write(&path, &|_| block, FeedForward::Experts);
        check(&path, &format!("experts in {}", block.name()));
    }
}

#[test]
fn mixes_of_types_are_invariant() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let mixes: [(&str, Mix<'_>); 2] = [("Q4_K_M", &medium), ("fallback types", &fallbacks)];
    for (what, mix) in mixes {
        write(&path, mix, FeedForward::Mlp);
        check(&path, what);
        let of_experts = |name: &str| mix(name.strip_suffix("_exps").unwrap_or(name));
        write(&path, &of_experts, FeedForward::Experts);
        check(&path, &format!("experts in {what}"));
    }
}
