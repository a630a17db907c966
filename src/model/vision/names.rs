//! The names of a tower's tensors in files.

use super::TowerFamily;
use super::parts::{Part, Scope, Source};

/// The names of a family's tensors in one kind of file.
pub(super) struct Names {
    /// Prefixes of the tower's tensors, of which a file has one.
    pub towers: &'static [&'static str],
    /// Prefixes of the projector's tensors, likewise.
    pub projectors: &'static [&'static str],
    /// The layers' list, in the tower.
    layers: &'static str,
    /// The list of projectors of layers' outputs, in the tower.
    deepstack: &'static str,
    /// Modules, and their names in the file.
    stems: &'static [(&'static str, &'static str)],
    /// Modules of which the file's name has no suffix.
    bare: &'static [&'static str],
    /// The suffix of the weights of a layer's matrices.
    matrix: &'static str,
}

/// The modules of a layer that multiply with a matrix.
const MATRICES: [&str; 8] = ["qkv", "q", "k", "v", "o", "gate", "up", "down"];

impl Names {
    pub fn of(family: TowerFamily, source: Source) -> Self {
        match (source, family) {
            (Source::Gguf, _) => Self {
                stems: gguf_stems(family),
                ..GGUF
            },
            (Source::Safetensors, TowerFamily::Qwen) => QWEN,
            (Source::Safetensors, TowerFamily::Gemma3) => Self {
                stems: GEMMA3_STEMS,
                bare: &["projection"],
                ..SIGLIP
            },
            (Source::Safetensors, TowerFamily::Lfm2) => SIGLIP,
            (Source::Safetensors, TowerFamily::Gemma4) => GEMMA4,
            (Source::Safetensors, TowerFamily::Pixtral) => PIXTRAL,
        }
    }

    /// The name of a tensor, with the prefixes of the file's tower and projector.
    pub fn name(&self, part: Part, tower: &str, projector: &str) -> String {
        let Part {
            scope,
            stem,
            suffix,
        } = part;
        let found = self.stems.iter().find(|(own, _)| *own == stem);
        let file_stem = found.map_or(stem, |(_, file)| *file);
        let module = match scope {
            Scope::Tower => format!("{tower}{file_stem}"),
            Scope::Layer(layer) => format!("{tower}{}{layer}.{file_stem}", self.layers),
            Scope::Projector => format!("{projector}{file_stem}"),
            Scope::Deepstack(number) => format!("{tower}{}{number}.{file_stem}", self.deepstack),
        };
        let is_matrix = suffix == "weight" && MATRICES.contains(&stem);
        let suffix = if is_matrix { self.matrix } else { suffix };
        if suffix.is_empty() || self.bare.contains(&stem) {
            module
        } else {
            format!("{module}.{suffix}")
        }
    }
}

const QWEN: Names = Names {
    towers: &["model.visual.", "visual."],
    projectors: &["model.visual.merger.", "visual.merger."],
    layers: "blocks.",
    deepstack: "deepstack_merger_list.",
    stems: &[
        ("patch", "patch_embed.proj"),
        ("positions", "pos_embed"),
        ("post_norm", "merger.norm"),
        ("qkv", "attn.qkv"),
        ("o", "attn.proj"),
        ("up", "mlp.linear_fc1"),
        ("down", "mlp.linear_fc2"),
        ("linear1", "linear_fc1"),
        ("linear2", "linear_fc2"),
        ("fc1", "linear_fc1"),
        ("fc2", "linear_fc2"),
    ],
    bare: &[],
    matrix: "weight",
};

const PROJECTORS: &[&str] = &["model.multi_modal_projector.", "multi_modal_projector."];

/// SigLIP's tower with LFM2-VL's projector.
const SIGLIP: Names = Names {
    towers: &[
        "model.vision_tower.vision_model.",
        "vision_tower.vision_model.",
        "model.vision_tower.",
        "vision_tower.",
    ],
    projectors: PROJECTORS,
    layers: "encoder.layers.",
    deepstack: "",
    stems: &[
        ("patch", "embeddings.patch_embedding"),
        ("positions", "embeddings.position_embedding"),
        ("post_norm", "post_layernorm"),
        ("norm1", "layer_norm1"),
        ("norm2", "layer_norm2"),
        ("q", "self_attn.q_proj"),
        ("k", "self_attn.k_proj"),
        ("v", "self_attn.v_proj"),
        ("o", "self_attn.out_proj"),
        ("up", "mlp.fc1"),
        ("down", "mlp.fc2"),
        ("norm", "layer_norm"),
        ("linear1", "linear_1"),
        ("linear2", "linear_2"),
    ],
    bare: &[],
    matrix: "weight",
};

/// SigLIP's tower with Gemma 3's projector.
const GEMMA3_STEMS: &[(&str, &str)] = &[
    ("patch", "embeddings.patch_embedding"),
    ("positions", "embeddings.position_embedding"),
    ("post_norm", "post_layernorm"),
    ("norm1", "layer_norm1"),
    ("norm2", "layer_norm2"),
    ("q", "self_attn.q_proj"),
    ("k", "self_attn.k_proj"),
    ("v", "self_attn.v_proj"),
    ("o", "self_attn.out_proj"),
    ("up", "mlp.fc1"),
    ("down", "mlp.fc2"),
    ("norm", "mm_soft_emb_norm"),
    ("projection", "mm_input_projection_weight"),
];

const GEMMA4: Names = Names {
    towers: &["model.vision_tower.", "vision_tower."],
    projectors: &["model.embed_vision.", "embed_vision."],
    layers: "encoder.layers.",
    deepstack: "",
    stems: &[
        ("patch", "patch_embedder.input_proj"),
        ("positions", "patch_embedder.position_embedding_table"),
        ("norm1", "input_layernorm"),
        ("post_norm1", "post_attention_layernorm"),
        ("norm2", "pre_feedforward_layernorm"),
        ("post_norm2", "post_feedforward_layernorm"),
        ("q", "self_attn.q_proj"),
        ("k", "self_attn.k_proj"),
        ("v", "self_attn.v_proj"),
        ("o", "self_attn.o_proj"),
        ("q_norm", "self_attn.q_norm"),
        ("k_norm", "self_attn.k_norm"),
        ("gate", "mlp.gate_proj"),
        ("up", "mlp.up_proj"),
        ("down", "mlp.down_proj"),
        ("projection", "embedding_projection"),
    ],
    bare: &["positions"],
    matrix: "linear.weight",
};

const PIXTRAL: Names = Names {
    towers: &["model.vision_tower.", "vision_tower."],
    projectors: PROJECTORS,
    layers: "transformer.layers.",
    deepstack: "",
    stems: &[
        ("patch", "patch_conv"),
        ("pre_norm", "ln_pre"),
        ("norm1", "attention_norm"),
        ("norm2", "ffn_norm"),
        ("q", "attention.q_proj"),
        ("k", "attention.k_proj"),
        ("v", "attention.v_proj"),
        ("o", "attention.o_proj"),
        ("gate", "feed_forward.gate_proj"),
        ("up", "feed_forward.up_proj"),
        ("down", "feed_forward.down_proj"),
        ("merge", "patch_merger.merging_layer"),
        ("linear1", "linear_1"),
        ("linear2", "linear_2"),
    ],
    bare: &[],
    matrix: "weight",
};

const GGUF: Names = Names {
    towers: &["v."],
    projectors: &["mm."],
    layers: "blk.",
    deepstack: "deepstack.",
    stems: &[],
    bare: &[],
    matrix: "weight",
};

/// The names in mmproj files: those of all families, and the numbers of the projector's linear layers.
fn gguf_stems(family: TowerFamily) -> &'static [(&'static str, &'static str)] {
    match family {
        TowerFamily::Qwen => QWEN_GGUF,
        TowerFamily::Gemma3 => GEMMA3_GGUF,
        TowerFamily::Gemma4 | TowerFamily::Pixtral | TowerFamily::Lfm2 => OTHER_GGUF,
    }
}

const QWEN_GGUF: &[(&str, &str)] = &[
    ("patch", "patch_embd"),
    ("positions", "position_embd"),
    ("post_norm", "post_ln"),
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("qkv", "attn_qkv"),
    ("o", "attn_out"),
    ("up", "ffn_up"),
    ("down", "ffn_down"),
    ("linear1", "0"),
    ("linear2", "2"),
];

const GEMMA3_GGUF: &[(&str, &str)] = &[
    ("patch", "patch_embd"),
    ("positions", "position_embd"),
    ("post_norm", "post_ln"),
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("q", "attn_q"),
    ("k", "attn_k"),
    ("v", "attn_v"),
    ("o", "attn_out"),
    ("up", "ffn_up"),
    ("down", "ffn_down"),
    ("norm", "soft_emb_norm"),
    ("projection", "input_projection"),
];

const OTHER_GGUF: &[(&str, &str)] = &[
    ("patch", "patch_embd"),
    ("positions", "position_embd"),
    ("pre_norm", "pre_ln"),
    ("post_norm", "post_ln"),
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("post_norm1", "attn_post_norm"),
    ("post_norm2", "ffn_post_norm"),
    ("q", "attn_q"),
    ("k", "attn_k"),
    ("v", "attn_v"),
    ("o", "attn_out"),
    ("q_norm", "attn_q_norm"),
    ("k_norm", "attn_k_norm"),
    ("gate", "ffn_gate"),
    ("up", "ffn_up"),
    ("down", "ffn_down"),
    ("norm", "input_norm"),
    ("projection", "input_projection"),
    ("merge", "patch_merger"),
    ("linear1", "1"),
    ("linear2", "2"),
];
