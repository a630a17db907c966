//! The default model: 1.2 GB of weights, of which a token needs few, so that a step takes milliseconds.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

/// Writes a config.json, and returns the model's path. The engine makes random weights.
pub fn write(folder: &Path) -> anyhow::Result<PathBuf> {
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 8192,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "moe_intermediate_size": 768,
        "num_experts": 64,
        "num_experts_per_tok": 2,
        "norm_topk_prob": true,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "eos_token_id": 2,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
    });
    let file = folder.join("config.json");
    fs::write(&file, config.to_string())
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(folder.to_owned())
}
