//! The gated MLP.

use super::norm::Norm;
use crate::loader::Loader;
use crate::parallel_experts::ParallelExperts;
use souffleur_base::error::LoadError;
use souffleur_kernels::{Backend, Gate, Linear};

/// `down(g(gate(x), up(x)))`, where `g` is usually `silu(gate) * up`.
pub struct Mlp<B: Backend> {
    pub(super) gate_up: Linear<B>,
    pub(super) gate: Gate,
    pub(super) down: Linear<B>,
    /// Norm of the output, before the residual add.
    pub(super) post_norm: Option<Norm<B>>,
    /// Experts whose output is added before `post_norm`.
    pub(super) parallel: Option<ParallelExperts<B>>,
    pub(super) residual_scale: Option<f32>,
}

impl<B: Backend> Mlp<B> {
    pub fn load(loader: &mut Loader<'_, B>, layer: usize, bias: bool) -> Result<Self, LoadError> {
        let width = loader.config().intermediate_in(layer);
        Self::of_module(loader, &format!("model.layers.{layer}.mlp"), width, bias)
    }

    pub fn of_module(
        loader: &mut Loader<'_, B>,
        module: &str,
        width: usize,
        bias: bool,
    ) -> Result<Self, LoadError> {
        let hidden = loader.config().hidden_size;
        let name = |part: &str| format!("{module}.{part}");
        let gate_up = [(name("gate_proj"), width), (name("up_proj"), width)];
        Ok(Self {
            gate_up: loader.linear(&gate_up, hidden, bias)?,
            gate: loader.config().gate(),
            down: loader.linear(&[(name("down_proj"), hidden)], width, bias)?,
            post_norm: None,
            parallel: None,
            residual_scale: loader.config().residual_scale,
        })
    }

    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, normed: &B::Operand) {
        let gated = self.gated(backend, normed);
        match &self.post_norm {
            None => add_projected(backend, x, &gated, &self.down, self.residual_scale),
            Some(norm) => {
                let projected = backend.project(&gated, &self.down);
                let output = match &self.parallel {
                    Some(parallel) => parallel.sum(backend, x, &projected),
                    None => projected,
                };
                norm.add(backend, x, &output);
            }
        }
    }

    pub(super) fn gated(&self, backend: &mut B, normed: &B::Operand) -> B::Operand {
        backend.gated(normed, &self.gate_up, self.gate, &self.down.weight)
    }
}

pub fn add_projected<B: Backend>(
    backend: &mut B,
    x: &mut B::Tensor,
    operand: &B::Operand,
    projection: &Linear<B>,
    scale: Option<f32>,
) {
    match scale {
        None => backend.project_add(x, operand, projection),
        Some(scale) => {
            let projected = backend.project(operand, projection);
            backend.add_scaled(x, &projected, scale);
        }
    }
}
