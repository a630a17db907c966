//! The experts that a file describes.

use super::Gguf;
use super::keys::Keys;
use super::names::{CORRECTION, ROUTER};
use crate::error::LoadError;
use crate::kernels::Gate;
use crate::kernels::routing::{GroupScore, Groups, Routing, Score, WeightSum};
use crate::model::config::Architecture;
use crate::model::config::deepseek::check_groups;
use crate::model::config::experts::{ExpertNames, ExpertsConfig};
use crate::model::config::limits::{EXPERTS, INTERMEDIATE, check_experts};
use crate::model::config::{gemma, gpt_oss};

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

/// Reads the experts of a file; `None` where no layer has some. A layer has experts if it has a router.
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
        | Architecture::Lfm2Moe
        | Architecture::DeepseekV3 => ExpertNames::QWEN,
        Architecture::GptOss => ExpertNames::GPT_OSS,
        Architecture::Gemma4 => ExpertNames::GEMMA4,
        _ => {
            let reason = format!(
                "is {count}: mixtures of experts of this architecture are not supported, use another model"
            );
            return Err(keys.error("expert_count", reason));
        }
    };
    let deepseek = architecture == Architecture::DeepseekV3;
    let is_lfm2 = architecture == Architecture::Lfm2Moe;
    let is_gpt_oss = architecture == Architecture::GptOss;
    let has_shared = matches!(
        architecture,
        Architecture::Qwen35Moe | Architecture::Qwen3Next
    );
    for (name, neutral) in NEUTRAL.into_iter().filter(|_| !deepseek) {
        let known = match name {
            "expert_gating_func" => is_lfm2 || is_gpt_oss,
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
    let plain = Routing::softmax(count, used, renormalised.unwrap_or(!deepseek));
    let routing = match architecture {
        Architecture::DeepseekV3 => deepseek_routing(keys, plain)?,
        Architecture::Lfm2Moe => sigmoids(keys, plain)?,
        Architecture::GptOss => softmax_of_chosen(keys, plain)?,
        _ => plain,
    };
    // Qwen's shared expert is another one, with a gate.
    let shared = keys.size("expert_shared_count", 0..=*EXPERTS.end())?;
    let shared = shared.filter(|shared| *shared > 0 && deepseek);
    let corrections = |layer: usize| gguf.tensor(&format!("blk.{layer}.{CORRECTION}")).is_some();
    Ok(Some(ExpertsConfig {
        width,
        corrected: is_lfm2 || (0..layers.len()).any(corrections),
        shared_width: shared.map(|shared| shared * width),
        layers,
        bias: is_gpt_oss,
        gate: match architecture {
            Architecture::GptOss => gpt_oss::GATE,
            Architecture::Gemma4 => gemma::GATE,
            _ => Gate::Silu,
        },
        scaled: architecture == Architecture::Gemma4,
        ..ExpertsConfig::plain(routing, names)
    }))
}

/// The formula of gpt-oss, which files may name.
fn softmax_of_chosen(keys: &Keys<'_>, routing: Routing) -> Result<Routing, LoadError> {
    const NAME: &str = "expert_gating_func";
    match keys.size(NAME, 0..=usize::MAX >> 1)? {
        None | Some(0 | 3) => Ok(Routing {
            score: Score::SoftmaxOfChosen,
            sum: WeightSum::AsScored,
            ..routing
        }),
        Some(other) => {
            let reason = format!("is {other}, supported is 3 (softmax over the chosen)");
            Err(keys.error(NAME, reason))
        }
    }
}

/// The formula of LFM2, whose files name sigmoids.
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

/// The formula of DeepSeek's routers.
fn deepseek_routing(keys: &Keys<'_>, plain: Routing) -> Result<Routing, LoadError> {
    let sigmoid = match keys.size("expert_gating_func", 0..=usize::MAX >> 1)? {
        None | Some(0 | 1) => false,
        Some(2) => true,
        Some(other) => {
            let reason = format!("is {other}, supported are 1 (softmax) and 2 (sigmoid)");
            return Err(keys.error("expert_gating_func", reason));
        }
    };
    let groups = |name| keys.size(name, 0..=*EXPERTS.end());
    let (all, used) = (
        groups("expert_group_count")?,
        groups("expert_group_used_count")?,
    );
    let groups = Groups {
        n_groups: all.unwrap_or(0),
        n_used: used.unwrap_or(0),
        score: if sigmoid {
            GroupScore::BestTwo
        } else {
            GroupScore::Best
        },
    };
    let limited = groups.n_used > 0 && groups.n_used < groups.n_groups;
    let scale = keys.number("expert_weights_scale", 0.0..=1e6)?;
    let routing = Routing {
        score: if sigmoid {
            Score::Sigmoid
        } else {
            Score::Softmax
        },
        sum: match plain.sum {
            WeightSum::One { .. } => WeightSum::One { added: 1e-20 },
            WeightSum::AsScored => WeightSum::AsScored,
        },
        groups: limited.then_some(groups),
        // None is written where it is one.
        scale: scale.filter(|scale| *scale != 0.0).unwrap_or(1.0) as f32,
        ..plain
    };
    check_groups(&routing, &keys.key("expert_count"))
        .map_err(|reason| keys.error("expert_group_count", reason))?;
    Ok(routing)
}
