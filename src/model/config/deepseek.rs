//! Expert configuration of DeepSeek's families, and of others with the same router.

use super::experts::{ExpertNames, ExpertsConfig};
use super::limits::{EXPERTS, INTERMEDIATE};
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;
use souffleur_kernels::routing::{GroupScore, Groups, MAX_GROUPS, Routing, Score, WeightSum};

pub(crate) const COUNT_KEY: &str = "n_routed_experts";

pub(crate) struct Defaults {
    pub count: usize,
    pub used: Option<usize>,
    pub width: usize,
    pub shared: usize,
    /// Number of initial layers with an MLP instead of experts.
    pub dense_layers: usize,
    pub scale: f64,
    pub groups: Option<[usize; 2]>,
}

pub(crate) fn dense_layers(json: &JsonFile, default: usize) -> Result<usize, LoadError> {
    let given = json.size("first_k_dense_replace", 0..=usize::MAX)?;
    Ok(given.unwrap_or(default))
}

/// Reads the experts of DeepSeek-V3 and similar families: sigmoid scores, corrected by biases when experts are chosen.
pub(crate) fn corrected(
    json: &JsonFile,
    layers: usize,
    defaults: &Defaults,
) -> Result<Option<ExpertsConfig>, LoadError> {
    let read = read(json, layers, defaults, |json, count, used| {
        refuse_others(json, "scoring_func", "sigmoid")?;
        refuse_others(json, "topk_method", "noaux_tc")?;
        Ok(Routing {
            score: Score::Sigmoid,
            sum: if json.flag_or_null("norm_topk_prob", true)? {
                WeightSum::One { added: 1e-20 }
            } else {
                WeightSum::AsScored
            },
            groups: groups(json, defaults, GroupScore::BestTwo, count)?,
            ..Routing::softmax(count, used, false)
        })
    })?;
    Ok(read.map(|experts| ExpertsConfig {
        corrected: true,
        ..experts
    }))
}

/// Rejects any value but `supported`: the family has a single formula.
pub(crate) fn refuse_others(json: &JsonFile, key: &str, supported: &str) -> Result<(), LoadError> {
    match json.text(key)? {
        Some(other) if other != supported => {
            Err(json.error(key, format!("is {other:?}, supported: {supported:?}")))
        }
        _ => Ok(()),
    }
}

/// `routing` returns the router's formula, given the numbers of experts and of experts per token.
pub(crate) fn read(
    json: &JsonFile,
    layers: usize,
    defaults: &Defaults,
    routing: impl FnOnce(&JsonFile, usize, usize) -> Result<Routing, LoadError>,
) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(COUNT_KEY, 0..=*EXPERTS.end())?;
    let count = count.unwrap_or(defaults.count);
    if count == 0 {
        return Ok(None);
    }
    if let Some(other) = json.value("moe_layer_freq").filter(|freq| **freq != 1) {
        let expected =
            "1: only models with experts in all layers after the dense ones are supported";
        return Err(json.expected("moe_layer_freq", other, expected));
    }
    let used = match json.size("num_experts_per_tok", EXPERTS)? {
        Some(used) => used,
        None => defaults
            .used
            .ok_or_else(|| json.error("num_experts_per_tok", "is missing"))?,
    };
    let width = json.size("moe_intermediate_size", INTERMEDIATE)?;
    let width = width.unwrap_or(defaults.width);
    let shared = match json.size("n_shared_experts", 0..=*EXPERTS.end())? {
        None if json.has("n_shared_experts") => 0,
        given => given.unwrap_or(defaults.shared),
    };
    let scale = json.number("routed_scaling_factor", 0.0..=1e6)?;
    let routing = routing(json, count, used)?;
    check_groups(&routing, COUNT_KEY).map_err(|reason| json.error("n_group", reason))?;
    let routing = Routing {
        scale: scale.unwrap_or(defaults.scale) as f32,
        ..routing
    };
    Ok(Some(ExpertsConfig {
        width,
        layers: (0..layers)
            .map(|layer| layer >= defaults.dense_layers)
            .collect(),
        shared_width: (shared > 0).then_some(shared * width),
        ..ExpertsConfig::plain(routing, ExpertNames::QWEN)
    }))
}

/// Reads the expert groups; `None` if all groups are used.
pub(crate) fn groups(
    json: &JsonFile,
    defaults: &Defaults,
    score: GroupScore,
    count: usize,
) -> Result<Option<Groups>, LoadError> {
    let size = |key, index: usize| match json.size(key, 1..=count)? {
        Some(size) => Ok(size),
        None => defaults
            .groups
            .map(|sizes| sizes[index])
            .ok_or_else(|| json.error(key, "is missing")),
    };
    let groups = Groups {
        n_groups: size("n_group", 0)?,
        n_used: size("topk_group", 1)?,
        score,
    };
    Ok((groups.n_used < groups.n_groups).then_some(groups))
}

/// Checks that groups are equally large, and that the used groups have enough experts for a token. The error continues
/// a sentence that begins with the key of the number of groups; `count_key` is the key of the number of experts.
pub(crate) fn check_groups(routing: &Routing, count_key: &str) -> Result<(), String> {
    let Routing {
        n_experts, n_used, ..
    } = *routing;
    let Some(groups) = routing.groups else {
        return Ok(());
    };
    let Groups { n_groups, .. } = groups;
    if n_groups > MAX_GROUPS || !n_experts.is_multiple_of(n_groups) {
        return Err(format!(
            "is {n_groups}, expected at most {MAX_GROUPS} and a divisor of {count_key}, {n_experts}"
        ));
    }
    let size = n_experts / n_groups;
    if groups.score == GroupScore::BestTwo && size < 2 {
        return Err(format!(
            "is {n_groups}, which leaves one expert per group, expected two or more"
        ));
    }
    if groups.n_used * size < n_used {
        return Err(format!(
            "is {n_groups}: the topk_group {} groups of a token have {} experts, but each token uses {n_used}",
            groups.n_used,
            groups.n_used * size,
        ));
    }
    Ok(())
}
