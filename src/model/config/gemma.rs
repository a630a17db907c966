//! Configuration common to Gemma's families: softcaps, norms around each block, scaled embeddings, RoPE of window
//! layers.

use serde_json::Value;

use super::gemma4::Gemma4Config;
use super::limits::FACTORS;
use super::scales::{Scales, Widths};
use crate::json_file::JsonFile;
use crate::rope::{RopeConfig, RopeContext, theta};
use souffleur_base::error::LoadError;
use souffleur_base::prompt_images::BidirectionalLayers;
use souffleur_kernels::Gate;

pub(crate) const GATE: Gate = Gate::GeluTanh;
pub(crate) const WINDOW_THETA: f64 = 1e4;
/// RoPE base of full-attention layers, since Gemma 3.
pub(crate) const FULL_THETA: f64 = 1e6;

pub(crate) struct GemmaRules {
    /// The default softcap of scores, if they are capped.
    pub score_cap: Option<f64>,
    pub logits_cap: Option<f64>,
    /// Whether the class with a vision tower caps logits too.
    pub caps_logits_with_vision: bool,
    /// Whether checkpoints store norm weights minus one.
    pub norms_minus_one: bool,
    pub has_window_rope: bool,
    /// Whether the scale of scores is 1.
    pub plain_scores: bool,
    /// Unless a key says otherwise.
    pub images: ImageAttention,
    pub is_gemma4: bool,
}

/// How the vectors of an image attend to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageAttention {
    /// The family has no models with images.
    None,
    Causal,
    Bidirectional(BidirectionalLayers),
}

#[derive(Clone, Debug, PartialEq)]
pub struct GemmaConfig {
    /// Softcap: `cap * tanh(x / cap)`.
    pub score_cap: Option<f32>,
    pub logits_cap: Option<f32>,
    /// Norm weights are stored minus one.
    pub norms_minus_one: bool,
    /// RoPE of sliding-window layers, if different.
    pub window_rope: Option<RopeConfig>,
    pub images: ImageAttention,
    pub gemma4: Option<Gemma4Config>,
}

impl GemmaConfig {
    pub(super) fn from_json(
        json: &JsonFile,
        rules: &GemmaRules,
        max_positions: usize,
    ) -> Result<Self, LoadError> {
        refuse_unsupported(json)?;
        // Gemma 4 also has models whose attention is causal, without the key.
        let is_bidirectional = json.value(BIDIRECTIONAL).and_then(Value::as_str) == Some("vision");
        let cap = |key: &str, default: Option<f64>| {
            let default = default.filter(|_| !json.has(key));
            Ok(json.number(key, FACTORS)?.or(default).map(|cap| cap as f32))
        };
        Ok(Self {
            // The classes of Gemma 3 read this key but do not use it.
            score_cap: match rules.score_cap {
                None => None,
                default => cap("attn_logit_softcapping", default)?,
            },
            // Gemma 3 with a vision tower does not use this key either.
            logits_cap: if !rules.caps_logits_with_vision && json.has("text_config") {
                None
            } else {
                cap("final_logit_softcapping", rules.logits_cap)?
            },
            norms_minus_one: rules.norms_minus_one,
            window_rope: if rules.has_window_rope {
                Some(window_rope(json, max_positions)?)
            } else {
                None
            },
            images: if rules.is_gemma4 && is_bidirectional {
                ImageAttention::Bidirectional(BidirectionalLayers::Windowed)
            } else {
                rules.images
            },
            gemma4: None,
        })
    }
}

/// In Gemma 4, this key names the modality whose tokens attend in both directions; in the other families, it says
/// whether text does.
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

fn refuse_unsupported(json: &JsonFile) -> Result<(), LoadError> {
    // Published files also have `hidden_act`; transformers reads `hidden_activation`.
    match json.text("hidden_activation")? {
        None | Some("gelu_pytorch_tanh") => {}
        Some(other) => {
            let reason = format!("is {other:?}, supported: \"gelu_pytorch_tanh\"");
            return Err(json.error("hidden_activation", reason));
        }
    }
    match json.value(BIDIRECTIONAL) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(Value::String(what)) if what == "vision" => Ok(()),
        Some(other) => {
            let reason = format!("is {other}, supported: false (attention is causal)");
            Err(json.error(BIDIRECTIONAL, reason))
        }
    }
}

/// The factors on embeddings, and on attention scores (1/sqrt of `query_pre_attn_scalar`).
pub(crate) fn scales(json: &JsonFile, widths: &Widths) -> Result<Scales, LoadError> {
    let scalar = json.number("query_pre_attn_scalar", FACTORS)?;
    Ok(Scales {
        embedding: Some(embedding_scale(widths.hidden)),
        scores: Some(scalar.unwrap_or(256.0).powf(-0.5) as f32),
        ..Scales::NONE
    })
}

/// The factor on embeddings, before it is rounded to the model's element type.
pub(crate) fn embedding_scale(hidden: usize) -> f32 {
    (hidden as f64).sqrt() as f32
}

/// RoPE of full-attention layers: `rope_parameters` for their kind, or the older keys.
pub(crate) fn full_rope(json: &JsonFile, context: &RopeContext) -> Result<RopeConfig, LoadError> {
    let theta = theta(json)?.unwrap_or(FULL_THETA);
    let scaling = json.object("rope_scaling")?;
    let rope = match scaling.filter(|scaling| !scaling.entries().is_empty()) {
        None => rope_parameters(json, "full_attention")?,
        some => some,
    };
    RopeConfig::of_kind(json, rope.as_ref(), theta, context.max_positions)
}

fn window_rope(json: &JsonFile, max_positions: usize) -> Result<RopeConfig, LoadError> {
    let theta = json.number("rope_local_base_freq", 1.000_001..=1e15)?;
    let rope = rope_parameters(json, "sliding_attention")?;
    let theta = theta.unwrap_or(WINDOW_THETA);
    RopeConfig::of_kind(json, rope.as_ref(), theta, max_positions)
}

fn rope_parameters(json: &JsonFile, kind: &str) -> Result<Option<JsonFile>, LoadError> {
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
            "is unknown, expected full_attention and sliding_attention, each with RoPE parameters";
        return Err(kinds.error(key, reason));
    }
    kinds.object(kind)
}
