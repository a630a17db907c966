//! MoE configuration: number and width of experts, layers with experts, tensor names.

use super::limits::EXPERTS;
use crate::json_file::JsonFile;
use crate::tensor_spec::TensorSpec;
use souffleur_base::error::LoadError;
use souffleur_kernels::Gate;
use souffleur_kernels::routing::{Routing, Score};

#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    pub routing: Routing,
    pub width: usize,
    pub layers: Vec<bool>,
    pub names: ExpertNames,
    /// Whether a correction bias is added to each score when experts are chosen.
    pub corrected: bool,
    /// Width of the shared expert, which every token uses.
    pub shared_width: Option<usize>,
    /// Whether router and experts add biases.
    pub bias: bool,
    pub gate: Gate,
    /// Whether factors multiply the elements of the router's input, and the weight of each expert.
    pub scaled: bool,
}

impl ExpertsConfig {
    /// No layers, width 0, no family-specific features.
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

    pub fn is_sigmoid(&self) -> bool {
        self.routing.score == Score::Sigmoid
    }

    pub fn are_in(&self, layer: usize) -> bool {
        self.layers.get(layer).copied().unwrap_or(false)
    }

    pub fn count(&self) -> usize {
        self.routing.n_experts
    }

    /// Expected number of distinct experts per layer that `tokens` tokens use, if routing is uniform and independent.
    pub fn expected(&self, tokens: f64) -> f64 {
        let Routing {
            n_experts, n_used, ..
        } = self.routing;
        let (all, used) = (n_experts as f64, n_used as f64);
        all * (1.0 - (1.0 - used / all).powf(tokens))
    }

    pub fn has_tensor(&self, name: &str) -> bool {
        let within_layer = name.strip_prefix("model.layers.");
        let module = within_layer.and_then(|rest| rest.split_once('.'));
        let in_module = module.and_then(|(_, rest)| rest.strip_prefix(self.names.module));
        in_module.is_some_and(|rest| rest.starts_with(".experts."))
    }

    /// The tensors of a layer's router, experts and shared expert; `bias` is whether the shared expert has biases.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// The module within a layer that contains router and experts.
    pub module: &'static str,
    pub router: &'static str,
    /// Gate, up, down.
    pub projections: [&'static str; 3],
}

impl ExpertNames {
    pub const QWEN: Self = Self {
        module: "mlp",
        router: "gate",
        projections: ["gate_proj", "up_proj", "down_proj"],
    };
    pub const MIXTRAL: Self = Self {
        module: "block_sparse_moe",
        router: "gate",
        projections: ["w1", "w3", "w2"],
    };
    /// Internal names for gpt-oss, whose checkpoints stack the matrices of all experts in one tensor.
    pub const GPT_OSS: Self = Self {
        router: "router",
        ..Self::QWEN
    };
    /// Internal names for Gemma 4, whose experts are stacked and in parallel with the MLP.
    pub const GEMMA4: Self = Self {
        module: "moe",
        router: "router.proj",
        ..Self::QWEN
    };
    /// The names of every family; those of gpt-oss differ from Qwen's only in the router.
    pub const ALL: [Self; 3] = [Self::QWEN, Self::MIXTRAL, Self::GEMMA4];

    pub fn module(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.module)
    }

    pub fn router(self, layer: usize) -> String {
        format!("{}.{}", self.module(layer), self.router)
    }

    /// Correction biases, added to scores when experts are chosen.
    pub fn correction(self, layer: usize) -> String {
        format!("{}.e_score_correction_bias", self.router(layer))
    }

    /// Factors on the elements of the router's input.
    pub fn input_scale(self, layer: usize) -> String {
        format!("{}.router.scale", self.module(layer))
    }

    pub fn factors(self, layer: usize) -> String {
        format!("{}.router.per_expert_scale", self.module(layer))
    }

    pub fn shared(self, layer: usize) -> String {
        format!("{}.shared_experts", self.module(layer))
    }

    pub fn projections(self, layer: usize, expert: usize) -> [String; 3] {
        let module = self.module(layer);
        self.projections
            .map(|projection| format!("{module}.experts.{expert}.{projection}"))
    }
}

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

/// The key of the number of experts, for which files use one of two names.
pub(crate) fn count_key(json: &JsonFile) -> &'static str {
    if json.value("num_local_experts").is_some() {
        "num_local_experts"
    } else {
        "num_experts"
    }
}

/// Softmax over all `n_experts`; `renormalised` divides the chosen experts' weights by their sum.
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
