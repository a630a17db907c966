//! A model that reads images, with random weights: the text model has the shape of Qwen3.5-0.8B with a smaller
//! vocabulary, the vision tower that of the larger Qwen3.5 models.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use half::bf16;
use serde_json::{Map, Value, json};

pub const VOCAB: u32 = 32_768;
/// The token at the positions of an image's vectors. Random prompts have smaller tokens.
pub const PAD: u32 = VOCAB - 1;
/// Side of a patch in pixels.
const PATCH: usize = 16;
/// Values of a patch: two equal frames of three colours.
pub const PATCH_VALUES: usize = 2 * 3 * PATCH * PATCH;
/// Side of the block of patches that becomes a vector.
pub const MERGE: u32 = 2;

const HIDDEN: usize = 1024;
const TEXT_LAYERS: usize = 24;
const TOWER_HIDDEN: usize = 1152;
const TOWER_MLP: usize = 4304;
const POSITIONS: usize = 2304;
/// Values of the random weights, which repeat: a number that divides no row.
const RANDOM_VALUES: usize = 1_000_003;

#[derive(Clone, Copy)]
enum Fill {
    Random,
    Ones,
    Zeros,
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
}

/// Writes the configuration, and the weights of a tower of this many layers. The engine makes those of the text model.
pub fn write(folder: &Path, tower_layers: usize) -> anyhow::Result<()> {
    let file = folder.join("config.json");
    let written = fs::write(&file, config(tower_layers).to_string());
    written.with_context(|| format!("cannot write {}", file.display()))?;
    let file = folder.join("model.safetensors");
    let written = write_weights(&file, &tensors(tower_layers));
    written.with_context(|| format!("cannot write {}", file.display()))
}

fn config(tower_layers: usize) -> Value {
    let kinds = (1..=TEXT_LAYERS).map(|layer| {
        if layer.is_multiple_of(4) {
            "full_attention"
        } else {
            "linear_attention"
        }
    });
    let rope = json!({
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": true,
    });
    let text = json!({
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 3584,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "layer_types": kinds.collect::<Vec<_>>(),
        "rope_parameters": rope,
        "dtype": "bfloat16",
    });
    let vision = json!({
        "hidden_size": TOWER_HIDDEN,
        "intermediate_size": TOWER_MLP,
        "depth": tower_layers,
        "num_heads": 16,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": MERGE,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": POSITIONS,
        "hidden_act": "gelu_pytorch_tanh",
        "rope_parameters": {"rope_type": "axial", "rope_theta": 10_000.0},
    });
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": true,
        "text_config": text,
        "vision_config": vision,
    })
}

/// The tower's tensors, under their names in published files.
fn tensors(tower_layers: usize) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], fill: Fill| {
        tensors.push(Tensor {
            name: format!("model.visual.{name}"),
            shape: shape.to_vec(),
            fill,
        });
    };
    let patch = [TOWER_HIDDEN, 3, 2, PATCH, PATCH];
    add("patch_embed.proj.weight".to_owned(), &patch, Fill::Random);
    let bias = "patch_embed.proj.bias".to_owned();
    add(bias, &[TOWER_HIDDEN], Fill::Zeros);
    let positions = "pos_embed.weight".to_owned();
    add(positions, &[POSITIONS, TOWER_HIDDEN], Fill::Random);
    for layer in 0..tower_layers {
        for (name, [outputs, inputs]) in [
            ("attn.qkv", [3 * TOWER_HIDDEN, TOWER_HIDDEN]),
            ("attn.proj", [TOWER_HIDDEN, TOWER_HIDDEN]),
            ("mlp.linear_fc1", [TOWER_MLP, TOWER_HIDDEN]),
            ("mlp.linear_fc2", [TOWER_HIDDEN, TOWER_MLP]),
        ] {
            let name = format!("blocks.{layer}.{name}");
            add(format!("{name}.weight"), &[outputs, inputs], Fill::Random);
            add(format!("{name}.bias"), &[outputs], Fill::Zeros);
        }
        for name in ["norm1", "norm2"] {
            let name = format!("blocks.{layer}.{name}");
            add(format!("{name}.weight"), &[TOWER_HIDDEN], Fill::Ones);
            add(format!("{name}.bias"), &[TOWER_HIDDEN], Fill::Zeros);
        }
    }
    let joined = TOWER_HIDDEN * (MERGE * MERGE) as usize;
    for (name, [outputs, inputs]) in [
        ("merger.linear_fc1", [joined, joined]),
        ("merger.linear_fc2", [HIDDEN, joined]),
    ] {
        add(format!("{name}.weight"), &[outputs, inputs], Fill::Random);
        add(format!("{name}.bias"), &[outputs], Fill::Zeros);
    }
    let norm = "merger.norm";
    add(format!("{norm}.weight"), &[TOWER_HIDDEN], Fill::Ones);
    add(format!("{norm}.bias"), &[TOWER_HIDDEN], Fill::Zeros);
    tensors
}

/// Writes a safetensors file, in bf16.
fn write_weights(file: &Path, tensors: &[Tensor]) -> anyhow::Result<()> {
    let mut header = Map::new();
    let mut end = 0;
    for tensor in tensors {
        let begin = end;
        end += 2 * tensor.shape.iter().product::<usize>();
        let entry = json!({
            "dtype": "BF16",
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut rng = fastrand::Rng::with_seed(1);
    let random: Vec<u8> = (0..RANDOM_VALUES)
        .flat_map(|_| bf16::from_f32((rng.f32() - 0.5) * 0.07).to_le_bytes())
        .collect();
    let mut at = 0;
    for tensor in tensors {
        let mut left = 2 * tensor.shape.iter().product::<usize>();
        match tensor.fill {
            Fill::Random => {
                while left > 0 {
                    let part = &random[at..random.len().min(at + left)];
                    out.write_all(part)?;
                    left -= part.len();
                    at = (at + part.len()) % random.len();
                }
            }
            Fill::Ones => {
                let ones = bf16::ONE.to_le_bytes().repeat(left / 2);
                out.write_all(&ones)?;
            }
            Fill::Zeros => out.write_all(&vec![0_u8; left])?,
        }
    }
    out.flush()?;
    Ok(())
}
