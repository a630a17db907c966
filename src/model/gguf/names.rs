//! Maps internal tensor names (Hugging Face's) to tensors, or rows of tensors, in a GGUF file.

use std::ops::Range;

use super::{Gguf, Tensor};
use crate::config::ModelConfig;
use crate::config::experts::ExpertNames;
use crate::config::recurrent::Recurrence;
use crate::weights::TensorSpec;
use souffleur_kernels::tensor_view::RowOrder;

pub(super) const EMBEDDING: &str = "token_embd.weight";
/// Absent for tied embeddings.
pub(super) const OUTPUT: &str = "output.weight";
/// Per-layer inputs of all layers: a row for each token id.
pub(super) const INPUT_TABLE: &str = "per_layer_token_embd.weight";
/// Divisors of RoPE's frequencies.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
/// Divisors of RoPE's frequencies for short and for long sequences (LongRoPE).
pub(super) const ROPE_FACTORS: [&str; 2] =
    ["rope_factors_short.weight", "rope_factors_long.weight"];

const FUSED: &str = "attn_qkv";

/// Stacks of the experts' gate, up and down projections.
const EXPERTS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
const FUSED_EXPERTS: &str = "ffn_gate_up_exps";
pub(super) const ROUTER: &str = "ffn_gate_inp";

/// Names outside of layers: internal, in the file.
const OUTSIDE_LAYERS: [(&str, &str); 6] = [
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
];

/// Names within a layer, including the suffix: internal, in the file.
const WITH_SUFFIX: [(&str, &str); 7] = [
    ("layer_scalar", "layer_output_scale.weight"),
    ("moe.router.scale", "ffn_gate_inp.scale"),
    ("moe.router.per_expert_scale", "ffn_down_exps.scale"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("mlp.gate.e_score_correction_bias", CORRECTION),
];
/// Decay and beta of delta nets, in one tensor.
const FUSED_RATES: &str = "ssm_ba";

/// Names within a layer, without the suffix: internal, in the file.
const IN_LAYER: [(&str, &str); 49] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("self_attn.k_b_proj", "attn_k_b"),
    ("self_attn.v_b_proj", "attn_v_b"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("moe.router.proj", ROUTER),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", ROUTER),
    ("block_sparse_moe.gate", ROUTER),
    ("mlp.router", ROUTER),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("self_attn.gate_proj", "attn_q"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.conv", "shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
];

/// A tensor of one expert, by its internal name.
struct ExpertPart<'a> {
    layer: &'a str,
    expert: usize,
    projection: usize,
    suffix: &'a str,
}

impl<'s> ExpertPart<'s> {
    /// `None` if the tensor is not an expert's.
    fn of(internal_name: &'s str) -> Option<Self> {
        let mut words = internal_name.strip_prefix("model.layers.")?.split('.');
        let (layer, module) = (words.next()?, words.next()?);
        let names = ExpertNames::ALL
            .into_iter()
            .find(|names| names.module == module)?;
        let ("experts", expert, projection) = (words.next()?, words.next()?, words.next()?) else {
            return None;
        };
        Some(Self {
            layer,
            expert: expert.parse().ok()?,
            projection: names
                .projections
                .iter()
                .position(|known| *known == projection)?,
            suffix: words.next()?,
        })
    }

    /// The name of the stack that contains this part.
    fn file_name(&self) -> String {
        let (stack, suffix) = (EXPERTS[self.projection], self.suffix);
        format!("blk.{}.{stack}.{suffix}", self.layer)
    }

    fn find<'a>(&self, gguf: &'a Gguf, count: usize, shape: &[usize]) -> Option<Place<'a>> {
        let &[outputs, inputs] = shape else {
            return Some(Place {
                tensor: gguf.tensor(&self.file_name())?,
                whole_shape: [&[count], shape].concat(),
                rows: self.expert..self.expert + 1,
                order: RowOrder::AsNumbered,
            });
        };
        if let Some(tensor) = gguf.tensor(&self.file_name()) {
            let first = self.expert * outputs;
            return Some(Place {
                tensor,
                whole_shape: vec![count, outputs, inputs],
                rows: first..first + outputs,
                order: RowOrder::AsNumbered,
            });
        }
        if self.projection == 2 {
            return None;
        }
        let first = (2 * self.expert + self.projection) * outputs;
        Some(Place {
            tensor: gguf.tensor(&format!("blk.{}.{FUSED_EXPERTS}.weight", self.layer))?,
            whole_shape: vec![count, 2 * outputs, inputs],
            rows: first..first + outputs,
            order: RowOrder::AsNumbered,
        })
    }
}

/// Correction biases, added to a router's scores when experts are chosen.
pub(super) const CORRECTION: &str = "exp_probs_b.bias";

/// The name of a tensor in GGUF files.
///
/// # Panics
/// If no configuration has the tensor.
pub(super) fn file_name(config: &ModelConfig, internal_name: &str) -> String {
    if let Some(part) = ExpertPart::of(internal_name) {
        return part.file_name();
    }
    if let Some((layer, name)) = internal_name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once('.'))
        && let Some((_, file)) = WITH_SUFFIX.iter().find(|(known, _)| *known == name)
    {
        return format!("blk.{layer}.{file}");
    }
    let (module, suffix) = internal_name
        .rsplit_once('.')
        .expect("names must end in .weight or .bias");
    let find = |table: &[(&str, &'static str)], module: &str| {
        let found = table.iter().find(|(known, _)| *known == module);
        found
            .expect("every tensor of a configuration must have a GGUF name")
            .1
    };
    let within_layer = module
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once('.'));
    match within_layer {
        Some((layer, module)) => {
            let special = config.architecture.family().gguf.names.iter();
            let special = special.copied().find(|(known, _)| *known == module);
            let file = special.map_or_else(|| find(&IN_LAYER, module), |(_, file)| file);
            format!("blk.{layer}.{file}.{suffix}")
        }
        None => format!("{}.{suffix}", find(&OUTSIDE_LAYERS, module)),
    }
}

/// The rows of a file's tensor that hold a tensor of the configuration.
pub(super) struct Place<'a> {
    pub tensor: Tensor<'a>,
    /// Expected shape of the whole tensor, outermost dimension first.
    pub whole_shape: Vec<usize>,
    /// Rows of the tensor; the rows of a stack's matrices are numbered consecutively.
    pub rows: Range<usize>,
    pub order: RowOrder,
}

/// Finds a tensor of the configuration, as a separate tensor or as rows of a fused one.
pub(super) fn find<'a>(
    gguf: &'a Gguf,
    config: &ModelConfig,
    spec: &TensorSpec,
) -> Option<Place<'a>> {
    if let (Some(part), Some(experts)) = (ExpertPart::of(&spec.name), &config.experts) {
        return part.find(gguf, experts.count(), &spec.shape);
    }
    let name = file_name(config, &spec.name);
    if let Some(place) = part_of_hybrid(gguf, config, spec, &name) {
        return Some(place);
    }
    if let Some(place) = half_of_mlp(gguf, config, spec, &name) {
        return Some(place);
    }
    if let Some(tensor) = gguf
        .tensor(&name)
        .or_else(|| other_norm(gguf, config, &name))
    {
        let by_head = ["k_b_proj", "v_b_proj"]
            .iter()
            .any(|part| spec.name.contains(&format!(".{part}.")));
        let whole_shape: Vec<usize> = match spec.shape.as_slice() {
            // Files omit the middle dimension of a convolution.
            &[channels, 1, taps] => vec![channels, taps],
            &[outputs, inputs] if by_head => {
                let heads = config.num_attention_heads;
                vec![heads, outputs / heads, inputs]
            }
            shape => shape.to_vec(),
        };
        return Some(Place {
            tensor,
            whole_shape,
            rows: 0..spec.shape[0],
            order: order(config, spec),
        });
    }
    let (q, kv) = (config.q_width(), config.kv_width());
    let parts = [
        ("attn_q", 0..q),
        ("attn_k", q..q + kv),
        ("attn_v", q + kv..q + 2 * kv),
    ];
    let mut words = name.split('.');
    let (_, layer, part, suffix) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (_, rows) = parts.into_iter().find(|(known, _)| *known == part)?;
    let tensor = gguf.tensor(&format!("blk.{layer}.{FUSED}.{suffix}"))?;
    let mut whole_shape = spec.shape.clone();
    whole_shape[0] = q + 2 * kv;
    Some(Place {
        tensor,
        whole_shape,
        rows,
        order: order(config, spec),
    })
}

fn other_norm<'a>(gguf: &'a Gguf, config: &ModelConfig, name: &str) -> Option<Tensor<'a>> {
    let mut others = config.architecture.family().gguf.other_names.iter();
    others.find_map(|(usual, other)| {
        let before = name.strip_suffix(usual)?;
        gguf.tensor(&format!("{before}{other}"))
    })
}

/// Finds a tensor of a hybrid model that is fused with another by alternating groups of rows: queries and gates of
/// each head, or decay and beta of each key head.
fn part_of_hybrid<'a>(
    gguf: &'a Gguf,
    config: &ModelConfig,
    spec: &TensorSpec,
    name: &str,
) -> Option<Place<'a>> {
    let recurrent = config.recurrent.as_ref()?;
    let place = |tensor, groups: usize, period: usize, first: usize, len: usize| {
        let mut whole_shape = spec.shape.clone();
        whole_shape[0] = groups * period;
        Place {
            tensor,
            rows: 0..whole_shape[0],
            whole_shape,
            order: RowOrder::Within { period, first, len },
        }
    };
    let (module, _) = spec.name.rsplit_once('.')?;
    if recurrent.gated_attention
        && let Some(first) = ["self_attn.q_proj", "self_attn.gate_proj"]
            .iter()
            .position(|part| module.ends_with(part))
    {
        let dim = config.head_dim;
        let heads = config.num_attention_heads;
        return Some(place(gguf.tensor(name)?, heads, 2 * dim, first * dim, dim));
    }
    let rate = ["linear_attn.in_proj_b", "linear_attn.in_proj_a"];
    let first = rate.iter().position(|part| module.ends_with(part))?;
    let Recurrence::DeltaNet { shape, .. } = recurrent.recurrence else {
        return None;
    };
    let layer = name.split('.').nth(1)?;
    let tensor = gguf.tensor(&format!("blk.{layer}.{FUSED_RATES}.weight"))?;
    let each = shape.value_heads / shape.key_heads;
    Some(place(tensor, shape.key_heads, 2 * each, first * each, each))
}

/// Finds a gate or up projection in a fused tensor, as in files of Phi-3.
fn half_of_mlp<'a>(
    gguf: &'a Gguf,
    config: &ModelConfig,
    spec: &TensorSpec,
    name: &str,
) -> Option<Place<'a>> {
    if !config.architecture.family().fused {
        return None;
    }
    let halves = ["ffn_gate.weight", "ffn_up.weight"];
    let half = halves.iter().position(|half| name.ends_with(half))?;
    let before = name.strip_suffix(halves[half])?;
    if gguf.tensor(&format!("{before}{}", halves[0])).is_some() {
        return None;
    }
    let &[outputs, inputs] = spec.shape.as_slice() else {
        return None;
    };
    Some(Place {
        tensor: gguf.tensor(&format!("{before}{}", halves[1]))?,
        whole_shape: vec![2 * outputs, inputs],
        rows: half * outputs..(half + 1) * outputs,
        order: RowOrder::AsNumbered,
    })
}

fn order(config: &ModelConfig, spec: &TensorSpec) -> RowOrder {
    let mut projections = ["q_proj", "k_proj"].iter();
    let rotates = projections.any(|name| spec.name.contains(name));
    if rotates && config.architecture.family().gguf.paired_rows {
        RowOrder::Pairs {
            head_dim: config.head_dim,
            rotary_dim: config.head_dim,
        }
    } else {
        RowOrder::AsNumbered
    }
}
