//! A router and its experts: in place of a layer's MLP, or in parallel with it.

use crate::config::experts::ExpertsConfig;
use crate::loader::Loader;
use souffleur_base::error::LoadError;
use souffleur_kernels::{Backend, Expert, Router};

/// The output is the sum of `weight * down(g(gate(x), up(x)))` over the chosen experts.
pub struct RoutedExperts<B: Backend> {
    router: Router<B>,
    experts: B::Experts,
}

impl<B: Backend> RoutedExperts<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        config: &ExpertsConfig,
    ) -> Result<Self, LoadError> {
        let router = load_router(loader, layer, config)?;
        let hidden = loader.config().hidden_size;
        let experts = (0..config.count()).map(|expert| {
            let [gate, up, down] = config.names.projections(layer, expert);
            let gate_up = [(gate, config.width), (up, config.width)];
            Ok(Expert {
                gate_up: loader.linear(&gate_up, hidden, config.bias)?,
                down: loader.linear(&[(down, hidden)], config.width, config.bias)?,
            })
        });
        let experts = experts.collect::<Result<Vec<_>, LoadError>>()?;
        Ok(Self {
            router,
            experts: loader.experts(experts, config.gate),
        })
    }

    /// Adds the experts' output for `rows` to `sum`; `routed` is the router's input.
    pub fn add(&self, backend: &mut B, sum: &mut B::Tensor, routed: &B::Tensor, rows: &B::Tensor) {
        let routes = backend.route(routed, &self.router);
        backend.add_experts(sum, rows, routes, &self.experts);
    }
}

fn load_router<B: Backend>(
    loader: &mut Loader<'_, B>,
    layer: usize,
    config: &ExpertsConfig,
) -> Result<Router<B>, LoadError> {
    let hidden = loader.config().hidden_size;
    let (names, count) = (config.names, config.count());
    let expert_vector = |loader: &mut Loader<'_, B>, present: bool, name: &str| {
        if present {
            loader.vector(&[(name, count)]).map(Some)
        } else {
            Ok(None)
        }
    };
    Ok(Router {
        logits: loader.linear(&[(names.router(layer), count)], hidden, config.bias)?,
        correction: expert_vector(loader, config.corrected, &names.correction(layer))?,
        factors: expert_vector(loader, config.scaled, &names.factors(layer))?,
        routing: config.routing,
    })
}
