//! Towers in GGUF files, written from the fixtures as llama.cpp's converter does.

use super::*;
use crate::gguf_writer::{File, Tensor, Value};

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
pub(super) fn header(config: &TowerConfig, projector: (&str, &str)) -> File {
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
    match config.family {
        TowerFamily::Qwen => file
            .size(&size("spatial_merge_size"), config.merge)
            .pair(&size("is_deepstack_layers"), Value::I32s(vec![0, 0])),
        TowerFamily::Pixtral => file
            .size(&size("spatial_merge_size"), config.merge)
            .pair("clip.use_silu", Value::Flag(true)),
        _ => file.size(&size("projector.scale_factor"), config.merge),
    }
}

fn file(name: &str) -> File {
    let converted = converted(name);
    let config = checkpoint(name).config;
    let mut file = header(&config, converted.projector);
    let bytes = fs::read(fixture(name).join("model.safetensors")).expect("committed");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid");
    let mut names = tensors.names();
    names.sort_unstable();
    for name in names {
        let shape = tensors.tensor(name).expect("named").shape().to_vec();
        let new = converted.name(name);
        for tensor in tensors_of(&config, &new, &shape, values(&tensors, name)) {
            file = file.tensor(tensor);
        }
    }
    file
}

pub(super) fn open(file: &File) -> Result<TowerCheckpoint, LoadError> {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("mmproj.gguf");
    fs::write(&path, file.bytes()).expect("writable");
    TowerCheckpoint::open_mmproj(&path)
}

#[test]
fn towers_from_gguf_files_have_the_bits_of_those_from_safetensors() {
    for name in TOWERS {
        let folder = checkpoint(name);
        let mut gguf = open(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        // The text model's epsilon is not in the file; published models have the tower's.
        if folder.config.family == TowerFamily::Pixtral {
            assert_eq!(gguf.config.projector_eps, gguf.config.eps);
            gguf.config.projector_eps = folder.config.projector_eps;
        }
        assert_eq!(gguf.config, folder.config, "{name}");
        let mut backend = plain_backend();
        let towers = [&folder, &gguf].map(|checkpoint| {
            Tower::load(checkpoint, &mut backend).expect("every tensor is checked")
        });
        for image in images(name) {
            let [one, other] = towers
                .each_ref()
                .map(|tower| encode(tower, &mut backend, &image, image.grid));
            assert!(one == other, "{name}, {:?}", image.grid);
            assert!(difference(&one, &image.vectors) < BOUND, "{name}");
        }
    }
}

#[test]
fn a_tower_next_to_a_model_is_used_if_it_is_the_only_one_that_fits() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let model = dir.path().join("m.gguf");
    let find = |width: usize| tower_next_to(&model, width);
    let put = |name: &str, file: &File| {
        let path = dir.path().join(name);
        fs::write(&path, file.bytes()).expect("writable");
        path
    };
    put("m.gguf", &File::default());
    assert_eq!(find(20).expect("readable"), None);
    let own = put("mmproj-m.gguf", &file("qwen"));
    // A broken file, one of another kind, and one of another width.
    fs::write(dir.path().join("mmproj-broken.gguf"), "GG").expect("writable");
    put(
        "mmproj-other.gguf",
        &with("qwen", "clip.projector_type", Value::Text("ldp".to_owned())),
    );
    put(
        "mmproj-wide.gguf",
        &with("qwen", "clip.vision.projection_dim", Value::U32(32)),
    );
    assert_eq!(find(20).expect("readable"), Some(own));
    assert_eq!(find(64).expect("readable"), None);
    put("mmproj-second.gguf", &file("lfm2"));
    let error = find(20).expect_err("two fit").to_string();
    assert!(error.contains("2 vision towers of width 20"), "{error}");
    assert!(
        error.contains("mmproj-m.gguf, mmproj-second.gguf"),
        "{error}"
    );
}

#[test]
fn towers_in_half_precision_are_read() {
    for name in ["gemma3", "pixtral"] {
        let mut file = file(name);
        for tensor in file
            .tensors
            .iter_mut()
            .filter(|tensor| tensor.sizes.len() > 1)
        {
            let words = tensor.data.chunks_exact(4);
            let words = words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            let halves = words.flat_map(|x| half::f16::from_f32(x).to_le_bytes());
            (tensor.data, tensor.type_id) = (halves.collect(), 1);
        }
        let mut gguf = open(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(gguf.dtype, Dtype::F16);
        gguf.config.projector_eps = checkpoint(name).config.projector_eps;
        let mut backend = plain_backend();
        let tower = Tower::load(&gguf, &mut backend).expect("every tensor is checked");
        for image in images(name) {
            let vectors = encode(&tower, &mut backend, &image, image.grid);
            assert!(difference(&vectors, &image.vectors) < 0.01, "{name}");
        }
    }
}

#[track_caller]
fn refused(file: &File, expected: &str) {
    let error = open(file).err().expect(expected).to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
}

/// The file with another value of a key.
fn with(name: &str, key: &str, value: Value) -> File {
    let mut file = file(name);
    file.pairs.retain(|(known, _)| known != key.as_bytes());
    file.pair(key, value)
}

#[test]
fn files_of_other_models_and_broken_files_are_refused_by_name() {
    let text = |text: &str| Value::Text(text.to_owned());
    let decoder = with("qwen", "general.architecture", text("llama"));
    refused(
        &decoder,
        "is \"llama\", expected \"clip\": this file has no vision tower",
    );
    let other = with("qwen", "clip.projector_type", text("ldp"));
    refused(
        &other,
        "clip.projector_type is \"ldp\", supported: qwen3vl_merger, gemma3",
    );
    let deepstack = with(
        "qwen",
        "clip.vision.is_deepstack_layers",
        Value::I32s(vec![0, 1]),
    );
    refused(&deepstack, "clip.vision.is_deepstack_layers names layers");
    let heads = with("qwen", "clip.vision.attention.head_count", Value::U32(5));
    refused(
        &heads,
        "clip.vision.attention.head_count is 5, which does not divide 24",
    );
    let layers = with("lfm2", "clip.vision.block_count", Value::U32(3));
    refused(&layers, "tensor v.blk.2.ln1.weight is missing");
    let width = with("gemma3", "clip.vision.projection_dim", Value::U32(24));
    refused(
        &width,
        "tensor mm.input_projection.weight has shape [24, 20]",
    );
    let mut cut = file("pixtral");
    cut.tensors
        .retain(|tensor| tensor.name != b"mm.patch_merger.weight");
    refused(
        &cut,
        "tensor mm.patch_merger.weight is missing, expected shape [24, 96]",
    );
    let size = with("gemma3", "clip.vision.image_size", Value::U32(20));
    refused(
        &size,
        "clip.vision.image_size makes 5 patches a side, expected a multiple of 3",
    );
}
