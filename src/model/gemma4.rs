//! Gemma 4: Gemma 3 with two head sizes and normalised values, and parts that only some model sizes have.
//!
//! Full-attention layers have wider heads, partial rotary (a quarter), and in larger models no value projection: values
//! are the keys before their norm. In smaller models the last layers share the KV of earlier ones, and all have
//! per-layer inputs ([`crate::layer_inputs`]). One model has experts in parallel with its MLPs
//! ([`crate::parallel_experts`]). Layers end with a factor on the residual stream. Norm weights are stored as factors.

use crate::config::ModelConfig;
use crate::config::experts::{ExpertNames, ExpertsConfig};
use crate::config::gemma::{self, FULL_THETA, GemmaRules, ImageAttention};
use crate::config::limits::{EXPERTS, INTERMEDIATE};
use crate::config::scales::Scales;
use crate::family::{
    Defaults, Family, GgufExperts, GgufFamily, GgufWindows, KeyNames, WindowLayers, Windows,
};
use crate::gemma2;
use crate::gguf::keys::{LOGITS_CAP, POST_ATTENTION};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, BlockNorms, FeedForwardSpec, LayerSpec, MixerSpec, QkNorm};
use crate::rope::{RopeConfig, RopeContext, RopeScaling, theta};
use souffleur_base::error::LoadError;
use souffleur_kernels::routing::Routing;

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        vocab_size: Some(262_144),
        ..gemma2::DEFAULTS
    },
    windows: Windows {
        default: Some(512),
        layers: WindowLayers::Period(6),
        last_is_full: true,
        ..gemma2::WINDOWS
    },
    qk_norm: QkNorm::Heads,
    norms: BlockNorms::Around,
    gemma: Some(GemmaRules {
        score_cap: None,
        logits_cap: None,
        caps_logits_with_vision: true,
        norms_minus_one: false,
        has_window_rope: true,
        plain_scores: true,
        images: ImageAttention::Causal,
        is_gemma4: true,
    }),
    keys: KeyNames {
        experts_used: "top_k_experts",
        ..KeyNames::USUAL
    },
    tensor_names: NAMES,
    experts,
    rope,
    scales: |_, widths| {
        Ok(Scales {
            embedding: Some(gemma::embedding_scale(widths.hidden)),
            scores: Some(1.0),
            ..Scales::NONE
        })
    },
    gguf: GgufFamily {
        numbers: &[LOGITS_CAP],
        names: &[POST_ATTENTION],
        windows: GgufWindows::Pattern {
            period: 6,
            required: false,
            default: None,
        },
        experts: Some(GgufExperts {
            names: ExpertNames::GEMMA4,
            gate: gemma::GATE,
            scaled: true,
            ..GgufExperts::PLAIN
        }),
        ..GgufFamily::named(Some("gemma4"))
    },
    missing_on_cuda: Some("this family's gates and norms"),
    ..Family::new("Gemma4ForConditionalGeneration", "gemma4", layer)
};

/// Parts of tensor names: router and experts are directly in a layer in checkpoints, and in a module `moe` internally.
const NAMES: &[(&str, &str)] = &[(".router.", ".moe.router."), (".experts.", ".moe.experts.")];

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            v_norm: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::Mlp { bias: false },
    }
}

fn rope(json: &JsonFile, context: &RopeContext) -> Result<RopeConfig, LoadError> {
    theta(json)?;
    if json.value("rope_parameters").is_some() {
        return gemma::full_rope(json, context);
    }
    Ok(RopeConfig {
        theta: FULL_THETA,
        scaling: RopeScaling::Proportional {
            part: 0.25,
            factor: 1.0,
        },
    })
}

/// Softmax over all experts, renormalised, then multiplied by each expert's factor. All layers have experts, in
/// parallel with their MLPs.
fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
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
