//! A tiny model with a vision tower: Mistral's text model, which CUDA runs, and a tower like Pixtral's.

use serde_json::json;
use tempfile::TempDir;

use crate::model;

/// Sides of a patch, in pixels, and patches of a vector's square.
const PATCH: usize = 4;
pub const MERGE: usize = 2;
/// Values of a patch: three channels.
pub const PATCH_VALUES: usize = 3 * PATCH * PATCH;
pub const VOCAB: u32 = 288;

const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const MLP: usize = 96;
const TOWER: usize = 24;
const TOWER_MLP: usize = 44;
const LAYERS: usize = 2;

pub fn vision_model() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "spatial_merge_size": MERGE,
        "projector_hidden_act": "gelu",
        "tie_word_embeddings": false,
        "eos_token_id": 2,
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "mistral",
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "intermediate_size": MLP,
            "max_position_embeddings": 1024,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "sliding_window": null,
            "tie_word_embeddings": false,
            "eos_token_id": 2,
            "vocab_size": VOCAB,
        },
        "vision_config": {
            "model_type": "pixtral",
            "hidden_act": "silu",
            "hidden_size": TOWER,
            "image_size": 64,
            "intermediate_size": TOWER_MLP,
            "num_attention_heads": 2,
            "num_hidden_layers": LAYERS,
            "patch_size": PATCH,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
        },
    });
    model::write(&dir, &config, shapes());
    dir
}

fn shapes() -> Vec<(String, Vec<usize>)> {
    let vocab = VOCAB as usize;
    let ends: [(&str, &[usize]); 9] = [
        ("language_model.model.embed_tokens", &[vocab, HIDDEN]),
        ("language_model.model.norm", &[HIDDEN]),
        ("language_model.lm_head", &[vocab, HIDDEN]),
        ("vision_tower.patch_conv", &[TOWER, 3, PATCH, PATCH]),
        ("vision_tower.ln_pre", &[TOWER]),
        ("multi_modal_projector.norm", &[TOWER]),
        (
            "multi_modal_projector.patch_merger.merging_layer",
            &[TOWER, MERGE * MERGE * TOWER],
        ),
        ("multi_modal_projector.linear_1", &[HIDDEN, TOWER]),
        ("multi_modal_projector.linear_2", &[HIDDEN, HIDDEN]),
    ];
    let text: [(&str, &[usize]); 9] = [
        ("input_layernorm", &[HIDDEN]),
        ("post_attention_layernorm", &[HIDDEN]),
        ("self_attn.q_proj", &[HEADS * HEAD_DIM, HIDDEN]),
        ("self_attn.k_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]),
        ("self_attn.v_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]),
        ("self_attn.o_proj", &[HIDDEN, HEADS * HEAD_DIM]),
        ("mlp.gate_proj", &[MLP, HIDDEN]),
        ("mlp.up_proj", &[MLP, HIDDEN]),
        ("mlp.down_proj", &[HIDDEN, MLP]),
    ];
    let tower: [(&str, &[usize]); 9] = [
        ("attention_norm", &[TOWER]),
        ("ffn_norm", &[TOWER]),
        ("attention.q_proj", &[TOWER, TOWER]),
        ("attention.k_proj", &[TOWER, TOWER]),
        ("attention.v_proj", &[TOWER, TOWER]),
        ("attention.o_proj", &[TOWER, TOWER]),
        ("feed_forward.gate_proj", &[TOWER_MLP, TOWER]),
        ("feed_forward.up_proj", &[TOWER_MLP, TOWER]),
        ("feed_forward.down_proj", &[TOWER, TOWER_MLP]),
    ];
    let named = |prefix: &str, parts: &[(&str, &[usize])]| -> Vec<(String, Vec<usize>)> {
        let named =
            |(part, shape): &(&str, &[usize])| (format!("{prefix}{part}.weight"), shape.to_vec());
        parts.iter().map(named).collect()
    };
    let mut shapes = named("", &ends);
    for layer in 0..LAYERS {
        shapes.extend(named(
            &format!("language_model.model.layers.{layer}."),
            &text,
        ));
        shapes.extend(named(
            &format!("vision_tower.transformer.layers.{layer}."),
            &tower,
        ));
    }
    shapes
}
