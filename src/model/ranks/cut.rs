//! How ranks divide each tensor, by its name.

use crate::config::ModelConfig;
use crate::config::recurrent::Recurrence;
use crate::layer_spec::QkNorm;
use crate::tensor_spec::TensorSpec;
use souffleur_kernels::recurrent::{DeltaNetShape, HeadOrder};
use souffleur_kernels::shard::Share;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Every rank has the tensor.
    Whole,
    /// Ranks divide the rows: these spans, in order.
    Outputs(Vec<Span>),
    /// Ranks divide the columns: these spans, in order.
    Inputs(Vec<Span>),
    /// Only rank 0 has the values: a bias of a matrix whose inputs are divided.
    First,
}

/// Consecutive rows or columns in units, which ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub units: usize,
    /// Rows or columns of a unit.
    pub unit: usize,
    pub share: Share,
}

impl Span {
    fn equal(units: usize, unit: usize) -> Self {
        Self {
            units,
            unit,
            share: Share::Equal,
        }
    }

    /// `len` rows or columns in as many units.
    fn single(len: usize) -> Vec<Self> {
        vec![Self::equal(len, 1)]
    }
}

/// How ranks divide a tensor of the model.
pub fn cut(config: &ModelConfig, spec: &TensorSpec) -> Cut {
    if spec.name == "lm_head.weight" {
        return Cut::Outputs(vec![Span {
            units: spec.shape[0],
            unit: 1,
            share: Share::Padded,
        }]);
    }
    let Some(place) = Place::of(&spec.name) else {
        return Cut::Whole;
    };
    match place.module {
        "self_attn" => place.of_attention(config, &spec.shape),
        "linear_attn" => place.of_delta_net(config, &spec.shape),
        "conv" => Cut::Whole,
        _ => match place.part {
            "gate_proj" | "up_proj" | "w1" | "w3" => Cut::Outputs(Span::single(spec.shape[0])),
            "down_proj" | "w2" if place.is_bias => Cut::First,
            "down_proj" | "w2" => Cut::Inputs(Span::single(spec.shape[1])),
            _ => Cut::Whole,
        },
    }
}

/// A tensor's place in a layer.
struct Place<'a> {
    layer: usize,
    /// The layer's module with the tensor.
    module: &'a str,
    /// The innermost module, or the tensor if it is no weight or bias.
    part: &'a str,
    is_bias: bool,
}

impl<'a> Place<'a> {
    /// `None` for tensors outside of layers' modules.
    fn of(name: &'a str) -> Option<Self> {
        let (layer, name) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (module, name) = name.split_once('.')?;
        let is_bias = name.ends_with(".bias");
        let path = name.strip_suffix(".bias");
        let path = path.or_else(|| name.strip_suffix(".weight"));
        let path = path.unwrap_or(name);
        Some(Self {
            layer: layer.parse().ok()?,
            module,
            part: path.rsplit('.').next().unwrap_or(path),
            is_bias,
        })
    }

    fn of_attention(&self, config: &ModelConfig, shape: &[usize]) -> Cut {
        let heads = |len: usize| {
            let heads = config.num_attention_heads;
            vec![Span::equal(heads, len / heads)]
        };
        let key_heads = |len: usize| {
            let (heads, _) = config.heads_in(self.layer);
            vec![Span {
                share: Share::Replicated,
                ..Span::equal(heads, len / heads)
            }]
        };
        let norms_all_heads = config.qk_norm == QkNorm::Whole;
        match self.part {
            "q_proj" | "q_b_proj" | "gate_proj" | "kv_b_proj" | "k_b_proj" | "v_b_proj"
            | "sinks" => Cut::Outputs(heads(shape[0])),
            "k_proj" | "v_proj" => Cut::Outputs(key_heads(shape[0])),
            "q_norm" if norms_all_heads => Cut::Outputs(heads(shape[0])),
            "k_norm" if norms_all_heads => Cut::Outputs(key_heads(shape[0])),
            "o_proj" if self.is_bias => Cut::First,
            "o_proj" => Cut::Inputs(heads(shape[1])),
            _ => Cut::Whole,
        }
    }

    fn of_delta_net(&self, config: &ModelConfig, shape: &[usize]) -> Cut {
        let recurrence = config.recurrent.as_ref().map(|all| all.recurrence);
        let Some(Recurrence::DeltaNet { shape: net, .. }) = recurrence else {
            return Cut::Whole;
        };
        let keys = || Span::equal(net.key_heads, net.key_dim);
        match self.part {
            "in_proj_qkv" | "conv1d" => {
                let spans = [keys(), keys()].into_iter();
                Cut::Outputs(spans.chain(values(&net, net.value_dim)).collect())
            }
            "in_proj_q" | "in_proj_k" => Cut::Outputs(vec![keys()]),
            "in_proj_v" | "in_proj_z" | "in_proj_a" | "in_proj_b" | "A_log" | "dt_bias" => {
                Cut::Outputs(values(&net, shape[0] / net.value_heads))
            }
            "out_proj" => Cut::Inputs(values(&net, net.value_dim)),
            _ => Cut::Whole,
        }
    }
}

/// Value heads with `width` rows or columns each, so that each rank has those of its key heads.
fn values(net: &DeltaNetShape, width: usize) -> Vec<Span> {
    let per_key = net.value_heads / net.key_heads;
    match net.order {
        HeadOrder::Grouped => vec![Span::equal(net.key_heads, per_key * width)],
        HeadOrder::Tiled => vec![Span::equal(net.key_heads, width); per_key],
    }
}
