//! Experts in parallel with an MLP; both have separate norms (Gemma 4).

use crate::blocks::norm::Norm;
use crate::config::experts::ExpertsConfig;
use crate::loader::Loader;
use crate::routed_experts::RoutedExperts;
use souffleur_base::error::LoadError;
use souffleur_kernels::Backend;

pub struct ParallelExperts<B: Backend> {
    mlp_norm: Norm<B>,
    router_norm: Norm<B>,
    input_norm: Norm<B>,
    experts: RoutedExperts<B>,
    output_norm: Norm<B>,
}

impl<B: Backend> ParallelExperts<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        config: &ExpertsConfig,
    ) -> Result<Self, LoadError> {
        let hidden = loader.config().hidden_size;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let scale = (hidden as f64).powf(-0.5) as f32;
        Ok(Self {
            experts: RoutedExperts::load(loader, layer, config)?,
            mlp_norm: Norm::load(loader, &name("post_feedforward_layernorm_1"), hidden)?,
            router_norm: Norm::scaled(loader, &config.names.input_scale(layer), hidden, scale)?,
            input_norm: Norm::load(loader, &name("pre_feedforward_layernorm_2"), hidden)?,
            output_norm: Norm::load(loader, &name("post_feedforward_layernorm_2"), hidden)?,
        })
    }

    /// Sum of the normalised outputs of the MLP (`mlp`) and of the experts for the residual stream `x`.
    pub fn sum(&self, backend: &mut B, x: &B::Tensor, mlp: &B::Tensor) -> B::Tensor {
        let mut sum = backend.zeros_like(x);
        self.mlp_norm.add(backend, &mut sum, mlp);
        let routed = self.router_norm.rows(backend, x);
        let rows = self.input_norm.rows(backend, x);
        let mut output = backend.zeros_like(x);
        self.experts.add(backend, &mut output, &routed, &rows);
        self.output_norm.add(backend, &mut sum, &output);
        sum
    }
}
