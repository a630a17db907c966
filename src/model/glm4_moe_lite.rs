//! GLM-4-MoE-Lite (GLM-4.7-Flash): DeepSeek-V3's latent attention and router, in other sizes. The configuration lists
//! the layers with experts.

use crate::config::ModelConfig;
use crate::config::deepseek;
use crate::config::experts::ExpertsConfig;
use crate::config::latent::LatentDefaults;
use crate::deepseek_v3;
use crate::family::{Defaults, Family};
use crate::json_file::JsonFile;
use crate::layer_spec::{FeedForwardSpec, LayerSpec, MixerSpec};
use souffleur_base::error::LoadError;

/// The family's GGUF files have DeepSeek-V3's name, and are read as DeepSeek-V3.
pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        context: 202_752,
        eps: 1e-5,
        bos: Some(0),
        eos: Some(1),
        ..Defaults::LLAMA
    },
    latent: Some(LatentDefaults {
        query_rank: 768,
        plain_dim: 192,
        value_dim: 256,
        interleaved: None,
    }),
    keys: deepseek_v3::KEYS,
    experts,
    missing_on_cuda: Some("this family's experts"),
    ..Family::new("Glm4MoeLiteForCausalLM", "glm4_moe_lite", layer)
};

pub fn layer(_: &ModelConfig, _: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Latent,
        feed_forward: FeedForwardSpec::Experts,
    }
}

/// DeepSeek-V3's formulas; `mlp_layer_types` lists the layers with experts.
fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let defaults = deepseek::Defaults {
        count: 64,
        used: Some(4),
        width: 1536,
        shared: 1,
        dense_layers: 1,
        scale: 1.8,
        groups: Some([1, 1]),
    };
    let Some(kinds) = json.texts("mlp_layer_types")? else {
        return deepseek::corrected(json, layers, &defaults);
    };
    if kinds.len() != layers {
        let reason = format!(
            "has {} entries, expected {layers}: one for each layer",
            kinds.len()
        );
        return Err(json.error("mlp_layer_types", reason));
    }
    let sparse = |kind: &&str| match *kind {
        "sparse" => Ok(true),
        "dense" => Ok(false),
        other => {
            let reason = format!("has {other:?}, supported: \"sparse\" and \"dense\"");
            Err(json.error("mlp_layer_types", reason))
        }
    };
    let layers_with = kinds.iter().map(sparse).collect::<Result<Vec<_>, _>>()?;
    let read = deepseek::corrected(json, layers, &defaults)?;
    Ok(read.map(|experts| ExpertsConfig {
        layers: layers_with,
        ..experts
    }))
}
