//! Tiny models: the fixtures, and one whose heads are large enough for the tensor-core kernels.

use std::path::PathBuf;

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tempfile::TempDir;

use crate::gpu;

const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const MLP: usize = 96;
const LAYERS: usize = 2;
const VOCAB: usize = 288;

pub fn fixture(name: &str) -> PathBuf {
    gpu::repository().join("tests/fixtures/models").join(name)
}

/// A model of random weights whose heads have 64 elements: attention in bfloat16 runs on tensor cores.
pub fn with_large_heads() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": false,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "max_position_embeddings": 1024,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
        "use_sliding_window": false,
        "eos_token_id": 2,
        "vocab_size": VOCAB,
    });
    write(&dir, &config, shapes());
    dir
}

/// Writes a model with random weights of these names and shapes.
pub fn write(dir: &TempDir, config: &Value, shapes: Vec<(String, Vec<usize>)>) {
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let bytes = weights(&name, shape.iter().product());
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    let file = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
}

fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let parts: [(&str, Vec<usize>); 11] = [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_norm", vec![HEAD_DIM]),
            ("self_attn.k_norm", vec![HEAD_DIM]),
            ("self_attn.q_proj", vec![HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.k_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.v_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD_DIM]),
            ("mlp.gate_proj", vec![MLP, HIDDEN]),
            ("mlp.up_proj", vec![MLP, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, MLP]),
        ];
        let named =
            parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape));
        shapes.extend(named);
    }
    shapes
}

/// Norm weights near 1, and matrix elements so large that the scores of tokens differ clearly.
fn weights(name: &str, len: usize) -> Vec<u8> {
    let seed = name.bytes().fold(7u64, |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    let mut random = fastrand::Rng::with_seed(seed);
    let value = |random: &mut fastrand::Rng| {
        let noise = random.f32() * 2.0 - 1.0;
        if name.contains("norm") {
            1.0 + 0.2 * noise
        } else {
            0.25 * noise
        }
    };
    (0..len)
        .flat_map(|_| bf16::from_f32(value(&mut random)).to_le_bytes())
        .collect()
}
