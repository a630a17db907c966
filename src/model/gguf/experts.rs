//! MoE configuration from GGUF.

use super::Gguf;
use super::keys::{Keys, ROUTER_NUMBERS};
use super::names::{CORRECTION, ROUTER};
use crate::config::experts::ExpertsConfig;
use crate::config::limits::{EXPERTS, INTERMEDIATE, check_experts};
use crate::family::GgufExperts;
use souffleur_base::error::LoadError;
use souffleur_kernels::routing::Routing;

/// Values of [`ROUTER_NUMBERS`] that have no effect, in the order of the keys; others are rejected unless the family
/// supports the key. A gating function of 1 is the softmax over all logits.
const WITHOUT_EFFECT: [&[f64]; 6] = [
    &[0.0, 1.0],
    &[0.0, 1.0],
    &[0.0],
    &[0.0],
    &[0.0, 1.0],
    &[0.0, 1.0],
];

/// `None` if the file names no experts. Otherwise the layers with a router have experts, and at least one has a router.
pub(super) fn experts(
    gguf: &Gguf,
    keys: &Keys<'_>,
    family: Option<&GgufExperts>,
    layers: usize,
) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = keys.size("expert_count", 0..=*EXPERTS.end())?.unwrap_or(0);
    if count == 0 {
        return Ok(None);
    }
    let Some(family) = family else {
        let reason = format!(
            "is {count}: mixtures of experts of this architecture are not supported, use another model"
        );
        return Err(keys.error("expert_count", reason));
    };
    refuse_unsupported(keys, family)?;
    let used = keys.required("expert_used_count", EXPERTS)?;
    let (used_key, count_key) = (keys.key("expert_used_count"), keys.key("expert_count"));
    check_experts((&used_key, used), (&count_key, count), layers)
        .map_err(|(key, reason)| keys.metadata.error(key, reason))?;
    let renormalised = keys.metadata.flag(&keys.key("expert_weights_norm"))?;
    let renormalised = renormalised.unwrap_or(family.renormalises);
    let width = match keys.size("expert_feed_forward_length", INTERMEDIATE)? {
        Some(width) => width,
        None => keys.required("feed_forward_length", INTERMEDIATE)?,
    };
    let layers = layers_with_router(gguf, keys, count, layers)?;
    let routing = (family.routing)(keys, Routing::softmax(count, used, renormalised))?;
    let shared = keys.size("expert_shared_count", 0..=*EXPERTS.end())?;
    let shared = shared.filter(|shared| *shared > 0 && family.has_shared);
    let corrections = |layer: usize| gguf.tensor(&format!("blk.{layer}.{CORRECTION}")).is_some();
    Ok(Some(ExpertsConfig {
        width,
        corrected: family.corrected || (0..layers.len()).any(corrections),
        shared_width: shared.map(|shared| shared * width),
        layers,
        bias: family.bias,
        gate: family.gate,
        scaled: family.scaled,
        ..ExpertsConfig::plain(routing, family.names)
    }))
}

fn refuse_unsupported(keys: &Keys<'_>, family: &GgufExperts) -> Result<(), LoadError> {
    for (name, without_effect) in ROUTER_NUMBERS.iter().zip(WITHOUT_EFFECT) {
        if family.numbers.contains(name) {
            continue;
        }
        let value = keys.number(name, f64::MIN..=f64::MAX)?;
        if let Some(value) = value.filter(|value| !without_effect.contains(value)) {
            let reason = format!("is {value}, which is not supported: use another model");
            return Err(keys.error(name, reason));
        }
    }
    Ok(())
}

fn layers_with_router(
    gguf: &Gguf,
    keys: &Keys<'_>,
    count: usize,
    layers: usize,
) -> Result<Vec<bool>, LoadError> {
    let has_router = |layer: usize| {
        let name = format!("blk.{layer}.{ROUTER}.weight");
        gguf.tensor(&name).is_some()
    };
    let layers: Vec<bool> = (0..layers).map(has_router).collect();
    if layers.contains(&true) {
        return Ok(layers);
    }
    let reason =
        format!("is {count}, but no layer has a router ({ROUTER}): convert the model again");
    Err(keys.error("expert_count", reason))
}
