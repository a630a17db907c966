//! Changes that llama.cpp's converter makes to the tensors of some families.

use super::Model;
use super::writer::Tensor;

/// The type number of MXFP4 in GGUF files.
const MXFP4: u32 = 39;

/// Parts of tensor names in checkpoints, and their replacements in GGUF files, for Gemma and OLMo 2.
pub const GEMMA: [(&str, &str); 13] = [
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
    ("router.proj", "ffn_gate_inp"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// A tensor in a checkpoint.
pub struct Source<'a> {
    pub name: &'a str,
    pub shape: &'a [usize],
    pub values: Vec<f32>,
}

impl Source<'_> {
    /// A tensor of the same layer, with this name, shape and these values.
    fn within_layer(&self, name: &str, shape: &[usize], values: &[f32]) -> Tensor {
        Tensor::f32(&format!("{}{name}", layer(self.name)), shape, values)
    }
}

/// The prefix `blk.N.` of the layer of a tensor.
fn layer(name: &str) -> String {
    let rest = name.strip_prefix("model.layers.").unwrap();
    format!("blk.{}.", rest.split('.').next().unwrap())
}

/// Reorders value heads from grouped by key head to interleaved over key heads; a head has `unit` elements.
fn interleaved(values: &[f32], key_heads: usize, unit: usize) -> Vec<f32> {
    let n = values.len() / unit / key_heads;
    let order = (0..n).flat_map(|i| (0..key_heads).map(move |head| head * n + i));
    order
        .flat_map(|head| &values[head * unit..(head + 1) * unit])
        .copied()
        .collect()
}

/// Gathers `len` elements at offset `first` of each group of `period` elements.
fn of_groups(values: &[f32], period: usize, first: usize, len: usize) -> Vec<f32> {
    let groups = values.chunks_exact(period);
    groups
        .flat_map(|group| &group[first..first + len])
        .copied()
        .collect()
}

/// The GGUF tensors of a delta net of Qwen3.5 or Qwen3-Next; `None` for other tensors.
pub fn delta_net(model: &Model<'_>, source: &Source<'_>) -> Option<Vec<Tensor>> {
    let (_, part) = source.name.split_once(".linear_attn.")?;
    let size = |key: &str| model.size(&format!("linear_{key}"));
    let (key_heads, value_heads) = (size("num_key_heads"), size("num_value_heads"));
    let (key_dim, value_dim) = (size("key_head_dim"), size("value_head_dim"));
    let (keys, hidden) = (key_heads * key_dim, model.size("hidden_size"));
    let values = &source.values;
    let by_head = |values: &[f32], unit: usize| match model.architecture {
        "qwen3next" => values.to_vec(),
        _ => interleaved(values, key_heads, unit),
    };
    // Queries and keys of all heads come first, then values; a channel has `width` elements.
    let channels = |width: usize| {
        let (before, after) = values.split_at(2 * keys * width);
        [before.to_vec(), by_head(after, value_dim * width)].concat()
    };
    let one = |name: &str, shape: &[usize], values: &[f32]| {
        Some(vec![source.within_layer(name, shape, values)])
    };
    match part {
        "A_log" => {
            let decays: Vec<f32> = values.iter().map(|log| -log.exp()).collect();
            one("ssm_a", source.shape, &by_head(&decays, 1))
        }
        "dt_bias" => one("ssm_dt.bias", source.shape, &by_head(values, 1)),
        "conv1d.weight" => {
            let taps = source.shape[2];
            let shape = [source.shape[0], taps];
            one("ssm_conv1d.weight", &shape, &channels(taps))
        }
        "in_proj_qkv.weight" => one("attn_qkv.weight", source.shape, &channels(hidden)),
        "in_proj_z.weight" => {
            let rows = by_head(values, value_dim * hidden);
            one("attn_gate.weight", source.shape, &rows)
        }
        "in_proj_b.weight" => one("ssm_beta.weight", source.shape, &by_head(values, hidden)),
        "in_proj_a.weight" => one("ssm_alpha.weight", source.shape, &by_head(values, hidden)),
        "in_proj_ba.weight" => one("ssm_ba.weight", source.shape, values),
        "in_proj_qkvz.weight" => {
            let own_values = value_heads / key_heads * value_dim;
            let period = 2 * key_dim + 2 * own_values;
            let rows = |first: usize, len: usize| {
                of_groups(values, period * hidden, first * hidden, len * hidden)
            };
            let (k, v) = (key_dim, own_values);
            let qkv = [rows(0, k), rows(k, k), rows(2 * k, v)].concat();
            let z = rows(2 * k + v, v);
            let heights = [qkv.len() / hidden, z.len() / hidden];
            Some(vec![
                source.within_layer("attn_qkv.weight", &[heights[0], hidden], &qkv),
                source.within_layer("attn_gate.weight", &[heights[1], hidden], &z),
            ])
        }
        "norm.weight" => one("ssm_norm.weight", source.shape, values),
        "out_proj.weight" => {
            let rows = values.chunks_exact(source.shape[1]);
            let rows: Vec<f32> = rows.flat_map(|row| by_head(row, value_dim)).collect();
            one("ssm_out.weight", source.shape, &rows)
        }
        other => panic!("{other}"),
    }
}

/// The GGUF tensor for a tensor of Gemma 4 whose checkpoint name lacks `.weight`; `None` for other tensors.
pub fn gemma4(source: &Source<'_>) -> Option<Vec<Tensor>> {
    let names = [
        ("layer_scalar", "layer_output_scale.weight"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
    ];
    let mut names = names.iter();
    let (_, name) = names.find(|(suffix, _)| source.name.ends_with(suffix))?;
    Some(vec![source.within_layer(
        name,
        source.shape,
        &source.values,
    )])
}

fn transposed(shape: &[usize], values: &[f32]) -> Vec<f32> {
    let matrices = values.chunks_exact(shape[1] * shape[2]);
    let columns = matrices.flat_map(|matrix| {
        (0..shape[2]).flat_map(move |column| matrix.iter().skip(column).step_by(shape[2]))
    });
    columns.copied().collect()
}

/// The GGUF tensors of gpt-oss experts: transposed so that outputs become rows; gate and up projections are split.
pub fn gpt_oss(source: &Source<'_>) -> Option<Vec<Tensor>> {
    let (_, part) = source.name.split_once(".mlp.experts.")?;
    let shape = source.shape;
    Some(match part {
        "down_proj" => {
            let rows = transposed(shape, &source.values);
            let shape = [shape[0], shape[2], shape[1]];
            vec![source.within_layer("ffn_down_exps.weight", &shape, &rows)]
        }
        "gate_up_proj" => {
            let (rows, inputs) = (transposed(shape, &source.values), shape[1]);
            let shape = [shape[0], shape[2] / 2, inputs];
            let half = |first: usize| of_groups(&rows, 2 * inputs, first * inputs, inputs);
            vec![
                source.within_layer("ffn_gate_exps.weight", &shape, &half(0)),
                source.within_layer("ffn_up_exps.weight", &shape, &half(1)),
            ]
        }
        "down_proj_bias" => vec![source.within_layer("ffn_down_exps.bias", shape, &source.values)],
        "gate_up_proj_bias" => {
            let shape = [shape[0], shape[1] / 2];
            let half = |first: usize| of_groups(&source.values, 2, first, 1);
            vec![
                source.within_layer("ffn_gate_exps.bias", &shape, &half(0)),
                source.within_layer("ffn_up_exps.bias", &shape, &half(1)),
            ]
        }
        other => panic!("{other}"),
    })
}

/// Experts of gpt-oss in MXFP4, from codes `[experts, outputs, blocks, 16]` and their scales. A block in the file is a
/// scale and sixteen bytes: byte `i` contains the codes of inputs `i` and `i + 16`.
pub fn mxfp4(name: &str, shape: &[usize], codes: &[u8], scales: &[u8]) -> Vec<Tensor> {
    let blocks: Vec<Vec<u8>> = codes
        .chunks_exact(16)
        .zip(scales)
        .map(|(codes, scale)| {
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            let bytes = (0..16).map(|i| code(i) | code(i + 16) << 4);
            std::iter::once(*scale).chain(bytes).collect()
        })
        .collect();
    let &[experts, outputs, n, _] = shape else {
        panic!("{shape:?}");
    };
    let stack = |part: &str, first: usize, step: usize| {
        let rows = blocks.chunks_exact(n).skip(first).step_by(step);
        let data = rows.flatten().flatten().copied().collect();
        let shape = [experts, outputs / step, 32 * n];
        let name = format!("{}ffn_{part}_exps.weight", layer(name));
        Tensor::new(&name, MXFP4, &shape, data)
    };
    if name.contains("down_proj") {
        vec![stack("down", 0, 1)]
    } else {
        vec![stack("gate", 0, 2), stack("up", 1, 2)]
    }
}
