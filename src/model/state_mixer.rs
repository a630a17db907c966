//! Parts of hybrid models: the recurrent token mixer, and the gated shared expert.

use crate::config::recurrent::{Recurrence, delta_inputs};
use crate::loader::Loader;
use souffleur_base::error::LoadError;
use souffleur_kernels::recurrent::{DeltaNetWeights, GatedConvWeights};
use souffleur_kernels::{Backend, Expert, Linear};

pub struct StateMixer<B: Backend> {
    layer: usize,
    weights: Weights<B>,
    out: Linear<B>,
}

enum Weights<B: Backend> {
    GatedConv(GatedConvWeights<B>),
    DeltaNet(DeltaNetWeights<B>),
}

impl<B: Backend> StateMixer<B> {
    /// # Panics
    /// If no layer of the model keeps a state.
    pub fn load(loader: &mut Loader<'_, B>, layer: usize) -> Result<Self, LoadError> {
        let config = loader.config();
        let recurrent = config.recurrent.as_ref();
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        match recurrent.expect("some layers must keep states").recurrence {
            Recurrence::GatedConv { n_taps, bias } => {
                let name = |part: &str| format!("model.layers.{layer}.conv.{part}");
                let weights = GatedConvWeights {
                    input: loader.linear(&[(name("in_proj"), 3 * hidden)], hidden, bias)?,
                    taps: loader.taps(&name("conv.weight"), hidden, n_taps)?,
                    n_taps,
                    bias: if bias {
                        Some(loader.vector(&[(&name("conv.bias"), hidden)])?)
                    } else {
                        None
                    },
                };
                Ok(Self {
                    layer,
                    weights: Weights::GatedConv(weights),
                    out: loader.linear(&[(name("out_proj"), hidden)], hidden, bias)?,
                })
            }
            Recurrence::DeltaNet { shape, fused } => {
                let name = |part: &str| format!("model.layers.{layer}.linear_attn.{part}");
                let inputs = delta_inputs(&shape, fused).into_iter();
                let inputs: Vec<(String, usize)> =
                    inputs.map(|(part, rows)| (name(part), rows)).collect();
                let weights = DeltaNetWeights {
                    shape,
                    input: loader.linear(&inputs, hidden, false)?,
                    taps: loader.taps(&name("conv1d.weight"), shape.channels(), shape.n_taps)?,
                    decay: loader.decays(&name("A_log"), shape.value_heads)?,
                    dt_bias: loader.vector(&[(&name("dt_bias"), shape.value_heads)])?,
                    norm: loader.vector(&[(&name("norm.weight"), shape.value_dim)])?,
                    eps,
                };
                let out = [(name("out_proj"), hidden)];
                Ok(Self {
                    layer,
                    weights: Weights::DeltaNet(weights),
                    out: loader.linear(&out, shape.values(), false)?,
                })
            }
        }
    }

    pub fn reader(&self) -> &B::Matrix {
        match &self.weights {
            Weights::GatedConv(conv) => &conv.input.weight,
            Weights::DeltaNet(net) => &net.input.weight,
        }
    }

    /// Updates the states of all rows with `normed`, and returns the mixer's output.
    pub fn mix(&self, backend: &mut B, normed: &B::Operand, batch: &B::Batch) -> B::Tensor {
        match &self.weights {
            Weights::GatedConv(conv) => backend.gated_conv(normed, conv, self.layer, batch),
            Weights::DeltaNet(net) => backend.delta_net(normed, net, self.layer, batch),
        }
    }

    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, mixed: &B::Tensor) {
        let mixed = backend.operand(mixed, &self.out.weight);
        backend.project_add(x, &mixed, &self.out);
    }
}

pub type GatedExpert<B> = (Linear<B>, Expert<B>);

/// `None` if the model has no gated shared expert.
pub fn load_gated_expert<B: Backend>(
    loader: &mut Loader<'_, B>,
    layer: usize,
) -> Result<Option<GatedExpert<B>>, LoadError> {
    let recurrent = loader.config().recurrent.as_ref();
    let Some(width) = recurrent.and_then(|recurrent| recurrent.shared_expert) else {
        return Ok(None);
    };
    let hidden = loader.config().hidden_size;
    let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
    let gate = loader.linear(&[(name("shared_expert_gate"), 1)], hidden, false)?;
    let gate_up = [
        (name("shared_expert.gate_proj"), width),
        (name("shared_expert.up_proj"), width),
    ];
    let expert = Expert {
        gate_up: loader.linear(&gate_up, hidden, false)?,
        down: loader.linear(&[(name("shared_expert.down_proj"), hidden)], width, false)?,
    };
    Ok(Some((gate, expert)))
}
