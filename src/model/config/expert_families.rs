//! The experts that each family's `config.json` describes.

use super::architecture::Architecture;
use super::experts::{ExpertNames, ExpertsConfig, count_key};
use super::limits::{EXPERTS, INTERMEDIATE, check_experts};
use super::{deepseek, gemma, gpt_oss};
use crate::error::LoadError;
use crate::kernels::Gate;
use crate::kernels::routing::{Routing, Score, WeightSum};
use crate::model::json_file::JsonFile;

impl ExpertsConfig {
    /// Reads the experts of a `config.json`.
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
            Architecture::Gemma4 => gemma4(json, layers)?,
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
        let count_key = if architecture.is_latent() {
            deepseek::COUNT_KEY
        } else {
            count_key(json)
        };
        let used_key = match architecture {
            Architecture::Gemma4 => "top_k_experts",
            _ => "num_experts_per_tok",
        };
        check_experts(n_used, (count_key, n_experts), layers)
            .map_err(|reason| json.error(used_key, reason))?;
        Ok(Some(experts))
    }
}

/// Softmax over all experts; the weights of the chosen are divided by their sum if `norm_topk_prob`. Every
/// `decoder_sparse_step`-th layer has experts, except the listed ones.
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
            sum: if json.flag("norm_topk_prob")?.unwrap_or(true) {
                WeightSum::One { added: 1e-6 }
            } else {
                WeightSum::AsScored
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

/// Softmax over all experts; the weights of the chosen are divided by their sum, then each is multiplied by its
/// expert's factor. All layers have experts, in parallel with their MLPs.
fn gemma4(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    if !json.flag("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    let count = json.required_size("num_experts", EXPERTS)?;
    let used = json.required_size("top_k_experts", EXPERTS)?;
    Ok(Some(ExpertsConfig {
        width: json.required_size("moe_intermediate_size", INTERMEDIATE)?,
        layers: vec![true; layers],
        gate: gemma::GATE,
        scaled: true,
        ..ExpertsConfig::plain(Routing::softmax(count, used, true), ExpertNames::GEMMA4)
    }))
}
