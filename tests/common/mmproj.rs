//! Converts vision towers to GGUF files (mmproj), as llama.cpp's converter does. The including module has the types
//! `File`, `Tensor`, `Value`, `TowerConfig` and `TowerFamily`.

use super::{File, Tensor, TowerConfig, TowerFamily, Value};

/// The projector's type and key, and the modules' names in safetensors and in the file, without layers.
struct Converted {
    projector: (&'static str, &'static str),
    prefixes: &'static [(&'static str, &'static str)],
    modules: &'static [(&'static str, &'static str)],
}

const SIGLIP: &[(&str, &str)] = &[
    ("embeddings.patch_embedding", "patch_embd"),
    ("embeddings.position_embedding", "position_embd"),
    ("post_layernorm", "post_ln"),
    ("layer_norm1", "ln1"),
    ("layer_norm2", "ln2"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("linear_1", "1"),
    ("linear_2", "2"),
    ("mm_soft_emb_norm", "soft_emb_norm"),
    ("mm_input_projection_weight", "input_projection.weight"),
    ("layer_norm", "input_norm"),
];

const QWEN: &[(&str, &str)] = &[
    ("patch_embed.proj", "patch_embd"),
    ("pos_embed", "position_embd"),
    ("attn.qkv", "attn_qkv"),
    ("attn.proj", "attn_out"),
    ("mlp.linear_fc1", "ffn_up"),
    ("mlp.linear_fc2", "ffn_down"),
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("linear_fc1", "0"),
    ("linear_fc2", "2"),
];

/// GGUF files name the layers of deepstack, 0 and 2 of this tower.
const QWEN3_VL: &[(&str, &str)] = &[
    (
        "model.visual.deepstack_merger_list.0.norm.",
        "v.deepstack.0.norm.",
    ),
    (
        "model.visual.deepstack_merger_list.0.linear_",
        "v.deepstack.0.",
    ),
    (
        "model.visual.deepstack_merger_list.1.norm.",
        "v.deepstack.2.norm.",
    ),
    (
        "model.visual.deepstack_merger_list.1.linear_",
        "v.deepstack.2.",
    ),
    ("model.visual.blocks.", "v.blk."),
    ("model.visual.merger.norm.", "v.post_ln."),
    ("model.visual.merger.", "mm."),
    ("model.visual.", "v."),
];

const GEMMA4: &[(&str, &str)] = &[
    ("patch_embedder.input_proj", "patch_embd"),
    (
        "patch_embedder.position_embedding_table",
        "position_embd.weight",
    ),
    ("input_layernorm", "ln1"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_feedforward_layernorm", "ln2"),
    ("post_feedforward_layernorm", "ffn_post_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_out"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("embedding_projection", "input_projection"),
    (".linear.weight", ".weight"),
];

const PIXTRAL: &[(&str, &str)] = &[
    ("patch_conv", "patch_embd"),
    ("ln_pre", "pre_ln"),
    ("attention_norm", "ln1"),
    ("ffn_norm", "ln2"),
    ("attention.q_proj", "attn_q"),
    ("attention.k_proj", "attn_k"),
    ("attention.v_proj", "attn_v"),
    ("attention.o_proj", "attn_out"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("patch_merger.merging_layer", "patch_merger"),
    ("linear_1", "1"),
    ("linear_2", "2"),
];

fn converted(name: &str) -> Converted {
    const TYPE: &str = "clip.projector_type";
    match name {
        "qwen" => Converted {
            projector: (TYPE, "qwen3vl_merger"),
            prefixes: &[
                ("model.visual.blocks.", "v.blk."),
                ("model.visual.merger.norm.", "v.post_ln."),
                ("model.visual.merger.", "mm."),
                ("model.visual.", "v."),
            ],
            modules: QWEN,
        },
        "qwen3-vl" => Converted {
            projector: (TYPE, "qwen3vl_merger"),
            prefixes: QWEN3_VL,
            modules: QWEN,
        },
        "gemma3" => Converted {
            projector: (TYPE, "gemma3"),
            prefixes: &[
                ("vision_tower.vision_model.encoder.layers.", "v.blk."),
                ("vision_tower.vision_model.", "v."),
                ("multi_modal_projector.", "mm."),
            ],
            modules: SIGLIP,
        },
        "gemma4" | "gemma4-plain" => Converted {
            projector: ("clip.vision.projector_type", "gemma4v"),
            prefixes: &[
                ("model.vision_tower.encoder.layers.", "v.blk."),
                ("model.vision_tower.", "v."),
                ("model.embed_vision.", "mm."),
            ],
            modules: GEMMA4,
        },
        "pixtral" => Converted {
            projector: (TYPE, "pixtral"),
            prefixes: &[
                ("vision_tower.transformer.layers.", "v.blk."),
                ("vision_tower.", "v."),
                ("multi_modal_projector.norm.", "mm.input_norm."),
                ("multi_modal_projector.", "mm."),
            ],
            modules: PIXTRAL,
        },
        _ => Converted {
            projector: (TYPE, "lfm2"),
            prefixes: &[
                ("model.vision_tower.vision_model.encoder.layers.", "v.blk."),
                ("model.vision_tower.vision_model.", "v."),
                ("model.multi_modal_projector.", "mm."),
            ],
            modules: SIGLIP,
        },
    }
}

impl Converted {
    fn name(&self, name: &str) -> String {
        let mut prefixes = self.prefixes.iter();
        let renamed =
            prefixes.find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
        let renamed = renamed.expect("every tensor has a known prefix");
        let modules = self.modules.iter();
        modules.fold(renamed, |name, (from, to)| {
            let at = name.find(from).filter(|at| {
                // Whole parts of the name only: `norm1` is not in `layer_norm1`.
                let is_start = name[..*at].ends_with('.') || from.starts_with('.');
                let rest = &name[at + from.len()..];
                is_start && (rest.is_empty() || rest.starts_with('.'))
            });
            match at {
                Some(at) => format!("{}{to}{}", &name[..at], &name[at + from.len()..]),
                None => name,
            }
        })
    }
}

/// The tensors of the file that the converter makes of one.
fn tensors_of(config: &TowerConfig, name: &str, shape: &[usize], values: Vec<f32>) -> Vec<Tensor> {
    let area = config.patch * config.patch;
    let picture = [config.hidden, 3, config.patch, config.patch];
    match (config.family, name) {
        (TowerFamily::Qwen, "v.patch_embd.weight") => [0, 1]
            .map(|frame| {
                let name = ["v.patch_embd.weight", "v.patch_embd.weight.1"][frame];
                let frames = values.chunks_exact(area).skip(frame).step_by(2);
                let values: Vec<f32> = frames.flatten().copied().collect();
                Tensor::f32(name, &picture, &values)
            })
            .into(),
        (TowerFamily::Gemma4 | TowerFamily::Lfm2, "v.patch_embd.weight") => {
            let outputs = values.chunks_exact(3 * area);
            let channels = outputs.flat_map(|output| {
                (0..3).flat_map(move |c| output.iter().skip(c).step_by(3).copied())
            });
            vec![Tensor::f32(name, &picture, &channels.collect::<Vec<f32>>())]
        }
        (TowerFamily::Gemma3, "mm.soft_emb_norm.weight") => {
            let plus_one: Vec<f32> = values.iter().map(|x| x + 1.0).collect();
            vec![Tensor::f32(name, shape, &plus_one)]
        }
        (TowerFamily::Pixtral, _) if name.contains(".attn_q.") || name.contains(".attn_k.") => {
            let rows: Vec<&[f32]> = values.chunks_exact(config.hidden).collect();
            let half = config.head_dim / 2;
            let order = (0..rows.len()).map(|row| {
                let (head, within) = (row / config.head_dim, row % config.head_dim);
                head * config.head_dim + within % 2 * half + within / 2
            });
            let moved: Vec<f32> = order.flat_map(|row| rows[row]).copied().collect();
            vec![Tensor::f32(name, shape, &moved)]
        }
        // Scalars have one dimension.
        _ if shape.is_empty() => vec![Tensor::f32(name, &[1], &values)],
        _ => vec![Tensor::f32(name, shape, &values)],
    }
}

/// A file without tensors. `projector` is the key and the name of the projector's type.
pub fn header(config: &TowerConfig, projector: (&str, &str)) -> File {
    let size = |key: &str| format!("clip.vision.{key}");
    let (key, projector) = projector;
    let file = File::default()
        .text("general.architecture", "clip")
        .text(key, projector)
        .size(&size("embedding_length"), config.hidden)
        .size(&size("feed_forward_length"), config.intermediate)
        .size(&size("block_count"), config.n_layers)
        .size(&size("attention.head_count"), config.n_heads)
        .number(&size("attention.layer_norm_epsilon"), config.eps)
        .size(&size("patch_size"), config.patch)
        .size(&size("image_size"), config.positions * config.patch)
        .size(&size("projection_dim"), config.text_width);
    let is_read = |layer: usize| i32::from(config.deepstack.contains(&layer));
    let flags = Value::I32s((0..config.n_layers).map(is_read).collect());
    match config.family {
        TowerFamily::Qwen => file
            .size(&size("spatial_merge_size"), config.merge)
            .pair(&size("is_deepstack_layers"), flags),
        TowerFamily::Pixtral => file
            .size(&size("spatial_merge_size"), config.merge)
            .pair("clip.use_silu", Value::Flag(true)),
        _ => file.size(&size("projector.scale_factor"), config.merge),
    }
}

/// The file of a tower with these tensors: their names in the folder, shapes and values. `name` is that of a fixture
/// with such names.
pub fn of_tensors(
    name: &str,
    config: &TowerConfig,
    tensors: impl IntoIterator<Item = (String, Vec<usize>, Vec<f32>)>,
) -> File {
    let converted = converted(name);
    let mut file = header(config, converted.projector);
    for (name, shape, values) in tensors {
        let name = converted.name(&name);
        for tensor in tensors_of(config, &name, &shape, values) {
            file = file.tensor(tensor);
        }
    }
    file
}
