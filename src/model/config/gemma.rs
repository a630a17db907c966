//! The common parts of Gemma's families: softcaps, norms around each block, scaled embeddings, a rotation for layers
//! with windows.

use serde_json::Value;

use super::architecture::Architecture;
use super::gemma4::Gemma4Config;
use super::limits::FACTORS;
use crate::error::LoadError;
use crate::kernels::Gate;
use crate::model::json_file::JsonFile;
use crate::model::rope::{RopeConfig, RopeScaling, theta};

/// The gate of their feed-forward blocks.
pub(crate) const GATE: Gate = Gate::GeluTanh;
/// The base of the rotation in layers with windows, where a configuration does not say it.
pub(crate) const WINDOW_THETA: f64 = 1e4;
/// The base of the other layers, from Gemma 3 on.
pub(crate) const FULL_THETA: f64 = 1e6;

/// Query heads by default.
pub(super) const HEADS: usize = 8;

/// Token ids by default: Gemma's published files omit more keys than others.
pub(super) fn vocab_size(architecture: Architecture) -> usize {
    match architecture {
        Architecture::Gemma2 => 256_000,
        Architecture::Gemma4 => 262_144,
        _ => 262_208,
    }
}

/// The part of a configuration that only Gemma has.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmaConfig {
    /// Softcap of attention scores: `cap * tanh(x / cap)`.
    pub score_cap: Option<f32>,
    /// Softcap of logits.
    pub logits_cap: Option<f32>,
    /// Norm weights are stored minus one.
    pub norms_from_one: bool,
    /// The rotation in layers with windows, where it differs.
    pub window_rope: Option<RopeConfig>,
    /// The part that only Gemma 4 has.
    pub fourth: Option<Gemma4Config>,
}

impl GemmaConfig {
    pub(super) fn from_json(
        json: &JsonFile,
        architecture: Architecture,
        max_positions: usize,
    ) -> Result<Option<Self>, LoadError> {
        if !architecture.is_gemma() {
            return Ok(None);
        }
        refuse_unsupported(json)?;
        let is_second = architecture == Architecture::Gemma2;
        let cap = |key: &str, absent: f64| {
            let absent = Some(absent).filter(|_| is_second && !json.has(key));
            Ok(json.number(key, FACTORS)?.or(absent).map(|cap| cap as f32))
        };
        Ok(Some(Self {
            // The classes of Gemma 3 read this one and do not use it.
            score_cap: if is_second {
                cap("attn_logit_softcapping", 50.0)?
            } else {
                None
            },
            // That of Gemma 3 with a vision tower does not use this one either.
            logits_cap: if architecture == Architecture::Gemma3 && json.has("text_config") {
                None
            } else {
                cap("final_logit_softcapping", 30.0)?
            },
            norms_from_one: architecture != Architecture::Gemma4,
            window_rope: if is_second {
                None
            } else {
                Some(window_rope(json, max_positions)?)
            },
            fourth: None,
        }))
    }
}

fn refuse_unsupported(json: &JsonFile) -> Result<(), LoadError> {
    // Published files have `hidden_act` too; transformers reads this one.
    match json.text("hidden_activation")? {
        None | Some("gelu_pytorch_tanh") => {}
        Some(other) => {
            let reason = format!("is {other:?}, supported is \"gelu_pytorch_tanh\"");
            return Err(json.error("hidden_activation", reason));
        }
    }
    // Gemma 4 names the modality with bidirectional attention; images are not supported.
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    match json.value(BOTH_WAYS) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(Value::String(what)) if what == "vision" => Ok(()),
        Some(other) => {
            let reason = format!("is {other}, supported is false: tokens see those before them");
            Err(json.error(BOTH_WAYS, reason))
        }
    }
}

/// The factor on scores: 1/sqrt of `query_pre_attn_scalar`, or 1.
pub(super) fn score_scale(json: &JsonFile, architecture: Architecture) -> Result<f32, LoadError> {
    if architecture == Architecture::Gemma4 {
        return Ok(1.0);
    }
    let scalar = json.number("query_pre_attn_scalar", FACTORS)?;
    Ok(scalar.unwrap_or(256.0).powf(-0.5) as f32)
}

/// The factor on embeddings, before rounding to the model's element type.
pub(crate) fn embedding_scale(hidden: usize) -> f32 {
    (hidden as f64).sqrt() as f32
}

/// The rotation of layers without windows: `rope_parameters` for their kind, or the older keys.
pub(super) fn full_rope(
    json: &JsonFile,
    architecture: Architecture,
    max_positions: usize,
) -> Result<RopeConfig, LoadError> {
    let theta = theta(json)?.unwrap_or(FULL_THETA);
    if architecture == Architecture::Gemma4 && json.value("rope_parameters").is_none() {
        return Ok(RopeConfig {
            theta: FULL_THETA,
            scaling: RopeScaling::Proportional {
                part: 0.25,
                factor: 1.0,
            },
        });
    }
    let scaling = json.object("rope_scaling")?;
    let own = match scaling.filter(|scaling| !scaling.entries().is_empty()) {
        None => of_kind(json, "full_attention")?,
        some => some,
    };
    RopeConfig::of_kind(json, own.as_ref(), theta, max_positions)
}

/// The rotation of layers with windows.
fn window_rope(json: &JsonFile, max_positions: usize) -> Result<RopeConfig, LoadError> {
    let theta = json.number("rope_local_base_freq", 1.000_001..=1e15)?;
    let own = of_kind(json, "sliding_attention")?;
    let theta = theta.unwrap_or(WINDOW_THETA);
    RopeConfig::of_kind(json, own.as_ref(), theta, max_positions)
}

fn of_kind(json: &JsonFile, kind: &str) -> Result<Option<JsonFile>, LoadError> {
    let Some(kinds) = json.object("rope_parameters")? else {
        return Ok(None);
    };
    let known = ["full_attention", "sliding_attention"];
    if let Some((key, _)) = kinds
        .entries()
        .iter()
        .find(|(key, _)| !known.contains(&key.as_str()))
    {
        let reason =
            "is given, expected full_attention and sliding_attention, each with its own rope";
        return Err(kinds.error(key, reason));
    }
    kinds.object(kind)
}
