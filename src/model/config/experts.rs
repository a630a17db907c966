//! The experts of a model: their number, width, layers and tensor names.

use super::limits::EXPERTS;
use crate::error::LoadError;
use crate::kernels::Gate;
use crate::kernels::routing::{Routing, Score};
use crate::model::json_file::JsonFile;
use crate::model::tensor_spec::TensorSpec;

/// The experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// How the router of each layer chooses them.
    pub routing: Routing,
    /// Width of an expert, in elements.
    pub width: usize,
    /// For each layer whether it has experts.
    pub layers: Vec<bool>,
    /// The names of their tensors.
    pub names: ExpertNames,
    /// Whether the router adds a correction bias to each score, for the choice only.
    pub corrected: bool,
    /// Width of the shared expert, which sees every token.
    pub shared_width: Option<usize>,
    /// Router and experts add biases.
    pub bias: bool,
    /// The function of their gates.
    pub gate: Gate,
    /// Whether the router's input has a factor for each element, and each expert one on its weight.
    pub scaled: bool,
}

impl ExpertsConfig {
    /// Experts in no layer yet, of no width, without anything that only some families have.
    pub(crate) fn plain(routing: Routing, names: ExpertNames) -> Self {
        Self {
            routing,
            width: 0,
            layers: Vec::new(),
            names,
            corrected: false,
            shared_width: None,
            bias: false,
            gate: Gate::Silu,
            scaled: false,
        }
    }

    /// Whether experts are scored by sigmoids.
    pub fn is_sigmoid(&self) -> bool {
        self.routing.score == Score::Sigmoid
    }

    /// Whether a layer has experts.
    pub fn are_in(&self, layer: usize) -> bool {
        self.layers.get(layer).copied().unwrap_or(false)
    }

    /// Number of experts in a layer.
    pub fn count(&self) -> usize {
        self.routing.n_experts
    }

    /// How many experts of a layer some tokens go through together, if all are chosen alike and each token's apart from
    /// the others'.
    pub fn expected(&self, tokens: f64) -> f64 {
        let Routing {
            n_experts, n_used, ..
        } = self.routing;
        let (all, used) = (n_experts as f64, n_used as f64);
        all * (1.0 - (1.0 - used / all).powf(tokens))
    }

    /// Whether a tensor of the model is a matrix of an expert.
    pub fn has_tensor(&self, name: &str) -> bool {
        let within_layer = name.strip_prefix("model.layers.");
        let module = within_layer.and_then(|rest| rest.split_once('.'));
        let inside = module.and_then(|(_, rest)| rest.strip_prefix(self.names.module));
        inside.is_some_and(|rest| rest.starts_with(".experts."))
    }

    /// The tensors of a layer's router and experts, and of its shared expert, with biases if `bias`.
    pub(super) fn tensors(&self, layer: usize, hidden: usize, bias: bool) -> Vec<TensorSpec> {
        let names = self.names;
        let router = format!("{}.weight", names.router(layer));
        let mut specs = vec![TensorSpec::new(router, &[self.count(), hidden])];
        if self.bias {
            let router = format!("{}.bias", names.router(layer));
            specs.push(TensorSpec::new(router, &[self.count()]));
        }
        if self.corrected {
            specs.push(TensorSpec::new(names.correction(layer), &[self.count()]));
        }
        if self.scaled {
            specs.push(TensorSpec::new(names.input_scale(layer), &[hidden]));
            specs.push(TensorSpec::new(names.factors(layer), &[self.count()]));
        }
        if let Some(width) = self.shared_width {
            specs.extend(mlp_tensors(&names.shared(layer), hidden, width, bias));
        }
        for expert in 0..self.count() {
            let shapes = [
                [self.width, hidden],
                [self.width, hidden],
                [hidden, self.width],
            ];
            for (name, shape) in names.projections(layer, expert).into_iter().zip(shapes) {
                specs.push(TensorSpec::new(format!("{name}.weight"), &shape));
                if self.bias {
                    specs.push(TensorSpec::new(format!("{name}.bias"), &shape[..1]));
                }
            }
        }
        specs
    }
}

/// The names of experts' tensors in a family's checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// The module within a layer that router and experts belong to.
    pub module: &'static str,
    /// The router.
    pub router: &'static str,
    /// Its projections: gate, up, down.
    pub projections: [&'static str; 3],
}

impl ExpertNames {
    /// As in Qwen's.
    pub const QWEN: Self = Self {
        module: "mlp",
        router: "gate",
        projections: ["gate_proj", "up_proj", "down_proj"],
    };
    /// As in Mixtral's.
    pub const MIXTRAL: Self = Self {
        module: "block_sparse_moe",
        router: "gate",
        projections: ["w1", "w3", "w2"],
    };
    /// Our names for those of gpt-oss, whose checkpoints have them in stacks only.
    pub const GPT_OSS: Self = Self {
        router: "router",
        ..Self::QWEN
    };
    /// Our names for those of Gemma 4, which are stacked and in parallel with its MLP.
    pub const GEMMA4: Self = Self {
        module: "moe",
        router: "router.proj",
        ..Self::QWEN
    };
    /// The names that checkpoints use.
    pub const ALL: [Self; 3] = [Self::QWEN, Self::MIXTRAL, Self::GEMMA4];

    /// The module of a layer.
    pub fn module(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.module)
    }

    /// The router of a layer.
    pub fn router(self, layer: usize) -> String {
        format!("{}.{}", self.module(layer), self.router)
    }

    /// The tensor of correction biases, which are added to scores for the choice.
    pub fn correction(self, layer: usize) -> String {
        format!("{}.e_score_correction_bias", self.router(layer))
    }

    /// The tensor of factors on the elements of the router's input.
    pub fn input_scale(self, layer: usize) -> String {
        format!("{}.router.scale", self.module(layer))
    }

    /// The tensor of factors on the experts' weights.
    pub fn factors(self, layer: usize) -> String {
        format!("{}.router.per_expert_scale", self.module(layer))
    }

    /// The shared expert.
    pub fn shared(self, layer: usize) -> String {
        format!("{}.shared_experts", self.module(layer))
    }

    /// Gate, up and down of an expert.
    pub fn projections(self, layer: usize, expert: usize) -> [String; 3] {
        let module = self.module(layer);
        self.projections
            .map(|projection| format!("{module}.experts.{expert}.{projection}"))
    }
}

/// The tensors of a gated MLP.
pub(super) fn mlp_tensors(
    module: &str,
    hidden: usize,
    width: usize,
    bias: bool,
) -> Vec<TensorSpec> {
    let mut specs = Vec::new();
    for (name, out, input) in [
        ("gate_proj", width, hidden),
        ("up_proj", width, hidden),
        ("down_proj", hidden, width),
    ] {
        specs.push(TensorSpec::new(
            format!("{module}.{name}.weight"),
            &[out, input],
        ));
        if bias {
            specs.push(TensorSpec::new(format!("{module}.{name}.bias"), &[out]));
        }
    }
    specs
}

/// The key of the number of experts: both names mean the same in the families that have it.
pub(crate) fn count_key(json: &JsonFile) -> &'static str {
    if json.value("num_local_experts").is_some() {
        "num_local_experts"
    } else {
        "num_experts"
    }
}

/// Softmax over all of `n_experts`; the weights of the chosen are divided by their sum if `renormalised`.
pub(crate) fn softmax(
    json: &JsonFile,
    n_experts: usize,
    default_used: usize,
    renormalised: bool,
) -> Result<Routing, LoadError> {
    let n_used = json.size("num_experts_per_tok", EXPERTS)?;
    Ok(Routing::softmax(
        n_experts,
        n_used.unwrap_or(default_used),
        renormalised,
    ))
}
