//! DeepSeek-V2: latent attention, routed experts and shared experts.
//!
//! arXiv 2405.04434. The router's softmax is over all experts; a token uses the best experts of all groups, or of the
//! groups whose best expert scores highest. The first layers have a plain MLP. Weights of chosen experts are scaled,
//! never renormalised.

use crate::config::ModelConfig;
use crate::config::deepseek::{self, Defaults as Experts};
use crate::config::experts::ExpertsConfig;
use crate::config::latent::LatentDefaults;
use crate::deepseek_v3;
use crate::family::{Family, GgufFamily};
use crate::json_file::JsonFile;
use crate::layer_spec::{FeedForwardSpec, LayerSpec, MixerSpec};
use souffleur_base::error::LoadError;
use souffleur_kernels::routing::{GroupScore, Routing};

pub(crate) static FAMILY: Family = Family {
    mlp_bias: true,
    latent: Some(LatentDefaults {
        interleaved: Some(true),
        ..deepseek_v3::LATENT
    }),
    keys: deepseek_v3::KEYS,
    experts,
    // In GGUF files the architecture of both versions is `deepseek2`.
    gguf: GgufFamily {
        name: None,
        ..deepseek_v3::GGUF
    },
    missing_on_cuda: Some("this family's experts"),
    ..Family::new("DeepseekV2ForCausalLM", "deepseek_v2", layer)
};

pub fn layer(_: &ModelConfig, _: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Latent,
        feed_forward: FeedForwardSpec::Experts,
    }
}

fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let grouped = match json.text("topk_method")? {
        None | Some("greedy") => false,
        Some("group_limited_greedy") => true,
        Some(other) => {
            let reason =
                format!("is {other:?}, supported: \"greedy\" and \"group_limited_greedy\"");
            return Err(json.error("topk_method", reason));
        }
    };
    let defaults = Experts {
        count: 64,
        used: None,
        width: 1407,
        shared: 2,
        dense_layers: deepseek::dense_layers(json, 0)?,
        scale: 1.0,
        groups: None,
    };
    let experts = deepseek::read(json, layers, &defaults, |json, count, used| {
        deepseek::refuse_others(json, "scoring_func", "softmax")?;
        if json.flag("norm_topk_prob")? == Some(true) {
            let reason = "is true, supported: false (weights are scaled, not divided by their sum)";
            return Err(json.error("norm_topk_prob", reason));
        }
        Ok(Routing {
            groups: if grouped {
                deepseek::groups(json, &defaults, GroupScore::Best, count)?
            } else {
                None
            },
            ..Routing::softmax(count, used, false)
        })
    })?;
    let lacks = |all: &ExpertsConfig| all.layers.contains(&true) && all.shared_width.is_none();
    if json.flag("mlp_bias")? == Some(true) && experts.as_ref().is_some_and(lacks) {
        let reason = "is true with n_shared_experts 0: MLP biases need shared experts";
        return Err(json.error("mlp_bias", reason));
    }
    Ok(experts)
}
