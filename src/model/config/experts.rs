//! The experts of a model: how many, of which width, in which layers, and what their tensors are called.

use super::Architecture;
use super::limits::{EXPERTS, INTERMEDIATE, check_experts};
use super::{deepseek, gemma4, gpt_oss};
use crate::error::LoadError;
use crate::kernels::Gate;
use crate::kernels::routing::{Routing, Score, WeightSum};
use crate::model::json_file::JsonFile;
use crate::model::weights::TensorSpec;

/// The experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// How the router of each layer chooses them.
    pub routing: Routing,
    /// Width of an expert, in elements.
    pub width: usize,
    /// For each layer whether it has experts, which stand where others have an MLP.
    pub layers: Vec<bool>,
    /// The names of their tensors.
    pub names: ExpertNames,
    /// Whether each has a number that is added to its score for the choice only.
    pub corrected: bool,
    /// Width of the MLP beside them that every token goes through.
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

    /// Reads what a `config.json` says of experts.
    pub(super) fn from_json(
        json: &JsonFile,
        architecture: Architecture,
        layers: usize,
    ) -> Result<Option<Self>, LoadError> {
        let read = match architecture {
            Architecture::Qwen3Moe => qwen3_moe(json, layers)?,
            Architecture::Mixtral => mixtral(json, layers)?,
            Architecture::Qwen35Moe => qwen35_moe(json, layers)?,
            Architecture::Qwen3Next => qwen3_next(json, layers)?,
            Architecture::Lfm2Moe => lfm2_moe(json, layers)?,
            Architecture::DeepseekV2 => deepseek::v2(json, layers)?,
            Architecture::DeepseekV3 => deepseek::v3(json, layers)?,
            Architecture::Glm4MoeLite => deepseek::glm4_moe_lite(json, layers)?,
            Architecture::GptOss => gpt_oss::experts(json, layers)?,
            Architecture::Gemma4 => gemma4::experts(json, layers)?,
            Architecture::Qwen35
            | Architecture::Lfm2
            | Architecture::Llama
            | Architecture::Mistral
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Gemma2
            | Architecture::Gemma3
            | Architecture::Granite
            | Architecture::SmolLm3
            | Architecture::Phi3
            | Architecture::Ministral3 => return Ok(None),
        };
        let Some(experts) = read.filter(|experts| experts.layers.contains(&true)) else {
            return Ok(None);
        };
        let Routing {
            n_experts, n_used, ..
        } = experts.routing;
        let count_key = match architecture.is_latent() {
            true => deepseek::COUNT_KEY,
            false => count_key(json),
        };
        let used_key = match architecture {
            Architecture::Gemma4 => "top_k_experts",
            _ => "num_experts_per_tok",
        };
        check_experts(n_used, (count_key, n_experts), layers)
            .map_err(|reason| json.error(used_key, reason))?;
        Ok(Some(experts))
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

    /// The tensors of a layer's router and experts, and those of the MLP beside them, whose projections add a `bias` or
    /// not.
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
    /// As we name those of gpt-oss, whose checkpoints have them in stacks only.
    pub const GPT_OSS: Self = Self {
        router: "router",
        ..Self::QWEN
    };
    /// As we name those of Gemma 4, which stand beside its MLP, in stacks.
    pub const GEMMA4: Self = Self {
        module: "moe",
        router: "router.proj",
        ..Self::QWEN
    };
    /// Those that checkpoints have.
    pub const ALL: [Self; 3] = [Self::QWEN, Self::MIXTRAL, Self::GEMMA4];

    /// The module of a layer.
    pub fn module(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.module)
    }

    /// The router of a layer.
    pub fn router(self, layer: usize) -> String {
        format!("{}.{}", self.module(layer), self.router)
    }

    /// The tensor of numbers that are added to scores for the choice.
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

    /// The MLP that every token goes through.
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

/// Softmax over all experts; the weights of the chosen are divided by their sum if `norm_topk_prob`. Every
/// `decoder_sparse_step`-th layer has experts, but for those that are listed.
fn qwen3_moe(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json
        .size(count_key(json), 0..=*EXPERTS.end())?
        .unwrap_or(128);
    if count == 0 {
        return Ok(None);
    }
    let step = json
        .size("decoder_sparse_step", 1..=usize::MAX)?
        .unwrap_or(1);
    let dense = json
        .numbers("mlp_only_layers", "layers")?
        .unwrap_or_default();
    let has_experts = |layer: usize| !dense.contains(&layer) && (layer + 1).is_multiple_of(step);
    let renormalised = json.flag("norm_topk_prob")?.unwrap_or(false);
    let routing = softmax(json, count, 8, renormalised)?;
    Ok(Some(ExpertsConfig {
        width: json
            .size("moe_intermediate_size", INTERMEDIATE)?
            .unwrap_or(768),
        layers: (0..layers).map(has_experts).collect(),
        ..ExpertsConfig::plain(routing, ExpertNames::QWEN)
    }))
}

/// As Qwen3-MoE has them, with other defaults.
fn qwen3_next(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let Some(experts) = qwen3_moe(json, layers)? else {
        return Ok(None);
    };
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(512);
    let renormalised = json.flag("norm_topk_prob")?.unwrap_or(true);
    Ok(Some(ExpertsConfig {
        routing: softmax(json, count, 10, renormalised)?,
        width: json
            .size("moe_intermediate_size", INTERMEDIATE)?
            .unwrap_or(512),
        ..experts
    }))
}

/// Softmax over all experts; the weights of the chosen are divided by their sum.
fn qwen35_moe(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(256);
    Ok(Some(ExpertsConfig {
        routing: softmax(json, count, 8, true)?,
        width: json
            .size("moe_intermediate_size", INTERMEDIATE)?
            .unwrap_or(512),
        layers: vec![true; layers],
        names: ExpertNames::QWEN,
        corrected: false,
        shared_width: None,
        bias: false,
        gate: Gate::Silu,
        scaled: false,
    }))
}

/// Sigmoids, with a correction for the choice where it is used; the first layers have none.
fn lfm2_moe(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(32);
    let n_used = json.size("num_experts_per_tok", EXPERTS)?.unwrap_or(4);
    let dense = json.size("num_dense_layers", 0..=usize::MAX)?.unwrap_or(2);
    let scale = json.number("routed_scaling_factor", 0.0..=1e6)?;
    Ok(Some(ExpertsConfig {
        routing: Routing {
            score: Score::Sigmoid,
            sum: match json.flag("norm_topk_prob")?.unwrap_or(true) {
                true => WeightSum::One { added: 1e-6 },
                false => WeightSum::AsScored,
            },
            scale: scale.unwrap_or(1.0) as f32,
            ..Routing::softmax(count, n_used, false)
        },
        width: json
            .size("moe_intermediate_size", INTERMEDIATE)?
            .unwrap_or(1792),
        layers: (0..layers).map(|layer| layer >= dense).collect(),
        names: ExpertNames::QWEN,
        corrected: json.flag("use_expert_bias")?.unwrap_or(true),
        shared_width: None,
        bias: false,
        gate: Gate::Silu,
        scaled: false,
    }))
}

/// Softmax over all experts; the weights of the chosen are divided by their sum.
fn mixtral(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(8);
    let routing = softmax(json, count, 2, true)?;
    Ok(Some(ExpertsConfig {
        width: json.required_size("intermediate_size", INTERMEDIATE)?,
        layers: vec![true; layers],
        ..ExpertsConfig::plain(routing, ExpertNames::MIXTRAL)
    }))
}

fn softmax(
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

/// Both names mean the same in these families.
pub(super) fn count_key(json: &JsonFile) -> &'static str {
    match json.value("num_local_experts").is_some() {
        true => "num_local_experts",
        false => "num_experts",
    }
}
