//! Mixture of experts (MoE) in place of an MLP.

use super::mlp::Mlp;
use super::norm::Norm;
use crate::config::experts::ExpertsConfig;
use crate::loader::Loader;
use crate::routed_experts::RoutedExperts;
use crate::state_mixer::{GatedExpert, load_gated_expert};
use souffleur_base::error::LoadError;
use souffleur_kernels::Backend;

/// Routed experts, and in some models a shared expert that every token uses.
pub struct Mixture<B: Backend> {
    experts: RoutedExperts<B>,
    shared: Option<Mlp<B>>,
    /// A shared expert with a gate on its output.
    gated_expert: Option<GatedExpert<B>>,
}

impl<B: Backend> Mixture<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        config: &ExpertsConfig,
    ) -> Result<Self, LoadError> {
        let bias = loader.config().bias.mlp;
        let shared = config
            .shared_width
            .map(|width| Mlp::of_module(loader, &config.names.shared(layer), width, bias))
            .transpose()?;
        Ok(Self {
            shared,
            experts: RoutedExperts::load(loader, layer, config)?,
            gated_expert: load_gated_expert(loader, layer)?,
        })
    }

    /// Adds the experts' output for the normalised `x` to `x`.
    pub fn add(&self, backend: &mut B, norm: &Norm<B>, x: &mut B::Tensor) {
        let normed = norm.rows(backend, x);
        let shared = self.shared.as_ref().map(|shared| {
            let normed = norm.forward(backend, x, &shared.gate_up.weight);
            shared.gated(backend, &normed)
        });
        self.experts.add(backend, x, &normed, &normed);
        if let Some((gate, expert)) = &self.gated_expert {
            backend.add_gated_expert(x, &normed, gate, expert);
        }
        if let (Some(shared), Some(gated)) = (&self.shared, &shared) {
            backend.project_add(x, gated, &shared.down);
        }
    }
}
