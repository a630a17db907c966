//! The experts that a file describes.

use super::Gguf;
use super::config::Keys;
use super::names::ROUTER;
use crate::error::LoadError;
use crate::kernels::routing::{Routing, Score, WeightSum};
use crate::model::config::Architecture;
use crate::model::config::experts::{ExpertNames, ExpertsConfig};
use crate::model::config::limits::{EXPERTS, INTERMEDIATE, check_experts};

/// Numbers that other models of these architectures route with, and the values that change nothing; others are refused.
const NEUTRAL: [(&str, &[f64]); 6] = [
    // Softmax over all logits.
    ("expert_gating_func", &[0.0, 1.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_shared_feed_forward_length", &[0.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("interleave_moe_layer_step", &[0.0, 1.0]),
];

/// Reads what a file says of experts; `None` where no layer has some. Those that have are the ones with a router.
pub(super) fn experts(
    gguf: &Gguf,
    keys: &Keys<'_>,
    architecture: Architecture,
    layers: usize,
) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = keys.size("expert_count", 0..=*EXPERTS.end())?.unwrap_or(0);
    if count == 0 {
        return Ok(None);
    }
    let names = match architecture {
        Architecture::Llama => ExpertNames::MIXTRAL,
        Architecture::Qwen3Moe
        | Architecture::Qwen35Moe
        | Architecture::Qwen3Next
        | Architecture::Lfm2Moe => ExpertNames::QWEN,
        _ => {
            let reason = format!(
                "is {count}: mixtures of experts of this architecture are not supported, use another model"
            );
            return Err(keys.error("expert_count", reason));
        }
    };
    let is_lfm2 = architecture == Architecture::Lfm2Moe;
    let has_shared = matches!(
        architecture,
        Architecture::Qwen35Moe | Architecture::Qwen3Next
    );
    for (name, neutral) in NEUTRAL {
        let known = match name {
            "expert_gating_func" => is_lfm2,
            "expert_weights_scale" => is_lfm2,
            name => has_shared && name.starts_with("expert_shared"),
        };
        if known {
            continue;
        }
        let value = keys.number(name, f64::MIN..=f64::MAX)?;
        if let Some(value) = value.filter(|value| !neutral.contains(value)) {
            let reason = format!("is {value}, which is not supported: use another model");
            return Err(keys.error(name, reason));
        }
    }
    let used = keys.required("expert_used_count", EXPERTS)?;
    let count_key = keys.key("expert_count");
    check_experts(used, (&count_key, count), layers)
        .map_err(|reason| keys.error("expert_used_count", reason))?;
    // Files of both architectures may leave it out, and mean that the weights are divided by their sum.
    let renormalised = keys.metadata.flag(&keys.key("expert_weights_norm"))?;
    let width = match keys.size("expert_feed_forward_length", INTERMEDIATE)? {
        Some(width) => width,
        None => keys.required("feed_forward_length", INTERMEDIATE)?,
    };
    let has_router = |layer: usize| {
        gguf.tensor(&format!("blk.{layer}.{ROUTER}.weight"))
            .is_some()
    };
    let layers: Vec<bool> = (0..layers).map(has_router).collect();
    if !layers.contains(&true) {
        let reason =
            format!("is {count} and no layer has a router, {ROUTER}: convert the model again");
        return Err(keys.error("expert_count", reason));
    }
    let routing = Routing::softmax(count, used, renormalised.unwrap_or(true));
    Ok(Some(ExpertsConfig {
        width,
        layers,
        corrected: is_lfm2,
        ..ExpertsConfig::plain(
            match is_lfm2 {
                true => sigmoids(keys, routing)?,
                false => routing,
            },
            names,
        )
    }))
}

/// The formula of LFM2, whose files say that it goes by sigmoids.
fn sigmoids(keys: &Keys<'_>, routing: Routing) -> Result<Routing, LoadError> {
    const NAME: &str = "expert_gating_func";
    const SIGMOID: f64 = 2.0;
    let function = keys.number(NAME, f64::MIN..=f64::MAX)?;
    if let Some(function) = function.filter(|function| *function != SIGMOID) {
        let reason = format!("is {function}, supported is {SIGMOID}: use another model");
        return Err(keys.error(NAME, reason));
    }
    let scale = keys.number("expert_weights_scale", 0.0..=1e6)?;
    Ok(Routing {
        score: Score::Sigmoid,
        sum: match routing.sum {
            WeightSum::AsScored => WeightSum::AsScored,
            WeightSum::One { .. } => WeightSum::One { added: 1e-6 },
        },
        // A scale of 0 means that there is none, as in llama.cpp.
        scale: scale.filter(|scale| *scale != 0.0).unwrap_or(1.0) as f32,
        ..routing
    })
}
