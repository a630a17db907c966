//! Qwen3-MoE: Qwen3's attention and many narrow experts.
//!
//! The router's softmax is over all experts. Renormalisation, and the layers with a plain MLP, are configured.

use crate::config::ModelConfig;
use crate::config::experts::{ExpertNames, ExpertsConfig, count_key, softmax};
use crate::config::limits::{EXPERTS, INTERMEDIATE};
use crate::family::{Defaults, Family, GgufExperts, GgufFamily, MlpWidth, WindowLayers, Windows};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec, QkNorm};
use crate::qwen2;
use souffleur_base::error::LoadError;

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(4),
        ..qwen2::DEFAULTS
    },
    intermediate: MlpWidth::Default(6144),
    windows: Windows {
        layers: WindowLayers::All,
        ..qwen2::WINDOWS
    },
    qk_norm: QkNorm::Heads,
    experts,
    gguf: GgufFamily {
        experts: Some(GgufExperts::PLAIN),
        ..GgufFamily::named(Some("qwen3moe"))
    },
    missing_on_cuda: Some("this family's experts"),
    ..Family::new("Qwen3MoeForCausalLM", "qwen3_moe", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Experts,
    }
}

/// Softmax over all experts, renormalised if `norm_topk_prob`. Every `decoder_sparse_step`-th layer has experts, except
/// those in `mlp_only_layers`.
pub(crate) fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
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
