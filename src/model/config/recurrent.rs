//! Configuration of hybrid models, some of whose layers keep a recurrent state instead of keys and values.

use crate::json_file::JsonFile;
use crate::tensor_spec::TensorSpec;
use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::StateHeads;
use souffleur_kernels::recurrent::DeltaNetShape;

/// Name suffixes of a delta net's projections to decay and beta, which have few outputs.
pub(super) const GATES: [&str; 2] = [
    ".linear_attn.in_proj_a.weight",
    ".linear_attn.in_proj_b.weight",
];
pub(crate) const DELTA_DIM: std::ops::RangeInclusive<usize> = 1..=1 << 10;

/// The recurrent layers, and other properties of hybrid models.
#[derive(Clone, Debug, PartialEq)]
pub struct RecurrentConfig {
    /// For each layer, whether it keeps a state; the others have attention.
    pub layers: Vec<bool>,
    pub recurrence: Recurrence,
    pub stored_form: StoredForm,
    /// Whether the output of attention has a sigmoid gate, which the query projection computes.
    pub gated_attention: bool,
    /// Width of the gated shared expert, in MoE layers.
    pub shared_expert: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrence {
    GatedConv {
        /// Kernel size of the convolution.
        n_taps: usize,
        /// Whether projections and convolution add biases.
        bias: bool,
    },
    DeltaNet {
        shape: DeltaNetShape,
        /// Whether checkpoints fuse the input projections into two, with rows grouped by key head.
        fused: bool,
    },
}

/// How checkpoints store norm weights and decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredForm {
    /// Norm weights are factors; decays are stored as logarithms.
    AsFactors,
    /// Norm weights are stored minus one, except the delta net's norm.
    MinusOne,
    /// Norm weights and decays are factors, as in GGUF files.
    Gguf,
}

impl RecurrentConfig {
    pub fn is_in(&self, layer: usize) -> bool {
        self.layers.get(layer).copied().unwrap_or(false)
    }

    pub fn state_bytes(&self, hidden: usize) -> u64 {
        let elements = match self.recurrence {
            Recurrence::GatedConv { n_taps, .. } => (n_taps - 1) * hidden,
            Recurrence::DeltaNet { shape, .. } => shape.state_elements(),
        };
        (elements * size_of::<f32>()) as u64
    }

    /// Elements of the inputs of a draft that a layer keeps until the draft is accepted, in f32.
    pub fn draft_elements(&self, hidden: usize) -> usize {
        match self.recurrence {
            Recurrence::GatedConv { .. } => hidden,
            Recurrence::DeltaNet { shape, .. } => shape.draft_elements(),
        }
    }

    /// The heads whose matrices are at the beginning of a state.
    pub fn state_heads(&self) -> StateHeads {
        match self.recurrence {
            Recurrence::GatedConv { .. } => StateHeads::default(),
            Recurrence::DeltaNet { shape, .. } => StateHeads {
                count: shape.value_heads,
                bytes: (shape.head_elements() * size_of::<f32>()) as u64,
            },
        }
    }

    /// Multiplications and additions per token on a layer's state, in f32: each element of a delta net's matrix is
    /// decayed, used in two products, and updated; a convolution mixes the tokens of each channel.
    pub fn state_ops(&self, hidden: usize) -> u64 {
        let ops = match self.recurrence {
            Recurrence::GatedConv { n_taps, .. } => 2 * n_taps * hidden,
            Recurrence::DeltaNet { shape, .. } => {
                7 * shape.values() * shape.key_dim + 2 * shape.n_taps * shape.channels()
            }
        };
        ops as u64
    }

    /// Elements of a token's activations in a recurrent layer.
    pub fn activations(&self, hidden: usize) -> usize {
        match self.recurrence {
            Recurrence::GatedConv { .. } => 4 * hidden,
            Recurrence::DeltaNet { shape, .. } => {
                shape.projected() + shape.channels() + 2 * shape.value_heads + 2 * shape.values()
            }
        }
    }

    pub(super) fn tensors(&self, layer: usize, hidden: usize) -> Vec<TensorSpec> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        match self.recurrence {
            Recurrence::GatedConv { n_taps, bias } => {
                let mut specs = Vec::new();
                let mut push = |part: &str, shape: &[usize]| {
                    specs.push(TensorSpec::new(name(&format!("conv.{part}.weight")), shape));
                    if bias {
                        specs.push(TensorSpec::new(
                            name(&format!("conv.{part}.bias")),
                            &shape[..1],
                        ));
                    }
                };
                push("in_proj", &[3 * hidden, hidden]);
                push("conv", &[hidden, 1, n_taps]);
                push("out_proj", &[hidden, hidden]);
                specs
            }
            Recurrence::DeltaNet { shape, fused } => {
                let module = |part: &str| name(&format!("linear_attn.{part}"));
                let inputs = delta_inputs(&shape, fused).into_iter();
                let mut specs: Vec<TensorSpec> = inputs
                    .map(|(part, rows)| {
                        TensorSpec::new(module(&format!("{part}.weight")), &[rows, hidden])
                    })
                    .collect();
                let taps = [shape.channels(), 1, shape.n_taps];
                specs.push(TensorSpec::new(module("conv1d.weight"), &taps));
                specs.push(TensorSpec::new(module("A_log"), &[shape.value_heads]));
                specs.push(TensorSpec::new(module("dt_bias"), &[shape.value_heads]));
                specs.push(TensorSpec::new(module("norm.weight"), &[shape.value_dim]));
                let out = [hidden, shape.values()];
                specs.push(TensorSpec::new(module("out_proj.weight"), &out));
                specs
            }
        }
    }
}

/// The input projections of a delta net, in order, and the rows of each.
pub fn delta_inputs(shape: &DeltaNetShape, fused: bool) -> Vec<(&'static str, usize)> {
    let (keys, values, heads) = (shape.keys(), shape.values(), shape.value_heads);
    let mut parts = if !fused {
        vec![("in_proj_qkv", shape.channels())]
    } else {
        vec![
            ("in_proj_q", keys),
            ("in_proj_k", keys),
            ("in_proj_v", values),
        ]
    };
    parts.extend([
        ("in_proj_z", values),
        ("in_proj_b", heads),
        ("in_proj_a", heads),
    ]);
    parts
}

/// Reads `layer_types`: for each layer, whether it is of the recurrent kind `with_state`.
pub(crate) fn layer_kinds(
    json: &JsonFile,
    layers: usize,
    with_state: &str,
) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(kinds) = json.texts("layer_types")? else {
        return Ok(None);
    };
    if kinds.len() != layers {
        let reason = format!(
            "has {} entries, expected {layers} (num_hidden_layers)",
            kinds.len()
        );
        return Err(json.error("layer_types", reason));
    }
    let keeps_state = |kind: &str| match kind {
        "full_attention" => Ok(false),
        kind if kind == with_state => Ok(true),
        other => {
            let reason =
                format!("names {other:?}, supported: \"full_attention\" and {with_state:?}");
            Err(json.error("layer_types", reason))
        }
    };
    kinds
        .into_iter()
        .map(keeps_state)
        .collect::<Result<_, _>>()
        .map(Some)
}
