//! Experts beside an MLP that every token goes through, each between norms of its own, as Gemma 4 has them.

use crate::error::LoadError;
use crate::kernels::{Backend, Expert, Router};
use crate::model::blocks::Norm;
use crate::model::config::experts::ExpertsConfig;
use crate::model::loader::Loader;

/// The experts of a layer, and the norms around them and behind the MLP.
pub struct SideExperts<B: Backend> {
    mlp_norm: Norm<B>,
    router_norm: Norm<B>,
    router: Router<B>,
    input_norm: Norm<B>,
    experts: B::Experts,
    output_norm: Norm<B>,
}

impl<B: Backend> SideExperts<B> {
    /// Loads the router and the experts of a layer.
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        config: &ExpertsConfig,
    ) -> Result<Self, LoadError> {
        let hidden = loader.config().hidden_size;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let router = [(config.names.router(layer), config.count())];
        let router = Router {
            logits: loader.linear(&router, hidden, false)?,
            correction: None,
            factors: Some(loader.vector(&[(&config.names.factors(layer), config.count())])?),
            routing: config.routing,
        };
        let scale = (hidden as f64).powf(-0.5) as f32;
        let experts = (0..config.count()).map(|expert| {
            let [gate, up, down] = config.names.projections(layer, expert);
            let gate_up = [(gate, config.width), (up, config.width)];
            Ok(Expert {
                gate_up: loader.linear(&gate_up, hidden, false)?,
                down: loader.linear(&[(down, hidden)], config.width, false)?,
            })
        });
        let experts = experts.collect::<Result<Vec<_>, LoadError>>()?;
        Ok(Self {
            mlp_norm: Norm::load(loader, &name("post_feedforward_layernorm_1"), hidden)?,
            router_norm: Norm::scaled(loader, &config.names.input_scale(layer), hidden, scale)?,
            router,
            input_norm: Norm::load(loader, &name("pre_feedforward_layernorm_2"), hidden)?,
            experts: loader.experts(experts, config.gate),
            output_norm: Norm::load(loader, &name("post_feedforward_layernorm_2"), hidden)?,
        })
    }

    /// The sum of `mlp`, what the MLP makes of the residual stream `x`, and what the experts make of it, both normed.
    pub fn sum(&self, backend: &mut B, x: &B::Tensor, mlp: &B::Tensor) -> B::Tensor {
        let mut sum = backend.zeros_like(x);
        self.mlp_norm.add(backend, &mut sum, mlp);
        let rows = self.router_norm.rows(backend, x);
        let routes = backend.route(&rows, &self.router);
        let rows = self.input_norm.rows(backend, x);
        let mut made = backend.zeros_like(x);
        backend.add_experts(&mut made, &rows, routes, &self.experts);
        self.output_norm.add(backend, &mut sum, &made);
        sum
    }
}
