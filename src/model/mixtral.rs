//! Mixtral: Mistral's attention and a mixture of full-width experts.
//!
//! The router's softmax is over all experts, and the weights of the selected ones are renormalised to sum to 1.

use crate::config::ModelConfig;
use crate::config::experts::{ExpertNames, ExpertsConfig, count_key, softmax};
use crate::config::limits::{EXPERTS, INTERMEDIATE};
use crate::family::{AttentionBias, Defaults, Family, GgufExperts, GgufFamily, Windows};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec};
use souffleur_base::error::LoadError;

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(8),
        context: 131_072,
        eps: 1e-5,
        theta: 1e6,
        ..Defaults::LLAMA
    },
    windows: Windows::EVERYWHERE,
    attention_bias: AttentionBias::Never,
    experts,
    gguf: GgufFamily {
        paired_rows: true,
        ..GgufFamily::named(None)
    },
    missing_on_cuda: Some("this family's experts"),
    ..Family::new("MixtralForCausalLM", "mixtral", layer)
};

/// Experts of Mixtral's GGUF files, whose architecture is named `llama`.
pub(crate) const GGUF_EXPERTS: GgufExperts = GgufExperts {
    names: ExpertNames::MIXTRAL,
    ..GgufExperts::PLAIN
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Experts,
    }
}

/// Softmax over all experts, renormalised over the selected ones.
fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(8);
    let routing = softmax(json, count, 2, true)?;
    Ok(Some(ExpertsConfig {
        width: json.required_size("intermediate_size", INTERMEDIATE)?,
        layers: vec![true; layers],
        ..ExpertsConfig::plain(routing, ExpertNames::MIXTRAL)
    }))
}
