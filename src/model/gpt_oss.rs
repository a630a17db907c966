//! gpt-oss: attention with sinks, a sliding window in every other layer, experts in every layer.
//!
//! arXiv 2508.10925. A sink is a learned score of a query head that counts in the softmax without a value, so that a
//! head may attend to nothing. The router's softmax is over the chosen experts, which have biases and clamped gate and
//! up projections.

use crate::config::ModelConfig;
use crate::config::experts::{ExpertNames, ExpertsConfig, count_key};
use crate::config::limits::{EXPERTS, INTERMEDIATE};
use crate::family::{
    AttentionBias, Defaults, Family, GgufExperts, GgufFamily, GgufWindows, WindowLayers, Windows,
};
use crate::gguf::keys::{GATING, Keys, OTHER_NORMS};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec};
use crate::rope::{RopeConfig, RopeContext, RopeScaling, Yarn, of_all_layers, theta};
use souffleur_base::error::LoadError;
use souffleur_kernels::Gate;
use souffleur_kernels::routing::{Routing, Score, WeightSum};

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(8),
        head_dim: Some(64),
        context: 131_072,
        eps: 1e-5,
        theta: 150_000.0,
        bos: None,
        eos: None,
        ..Defaults::LLAMA
    },
    windows: Windows {
        default: Some(128),
        layers: WindowLayers::Period(2),
        ..Windows::EVERYWHERE
    },
    attention_bias: AttentionBias::Key { default: true },
    sinks: true,
    experts,
    rope,
    gguf: GgufFamily {
        other_names: OTHER_NORMS,
        windows: GgufWindows::Pattern {
            period: 2,
            required: true,
            default: None,
        },
        experts: Some(GgufExperts {
            names: ExpertNames::GPT_OSS,
            numbers: &[GATING],
            routing: gguf_routing,
            bias: true,
            gate: GATE,
            ..GgufExperts::PLAIN
        }),
        yarn_truncates: false,
        ..GgufFamily::named(Some("gpt-oss"))
    },
    missing_on_cuda: Some("this family's experts"),
    ..Family::new("GptOssForCausalLM", "gpt_oss", layer)
};

const GATE: Gate = Gate::Clamped {
    limit: 7.0,
    slope: 1.702,
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            sinks: true,
            ..AttentionSpec::plain(config, layer)
        }),
        feed_forward: FeedForwardSpec::Experts,
    }
}

fn rope(json: &JsonFile, context: &RopeContext) -> Result<RopeConfig, LoadError> {
    if RopeConfig::is_absent(json)? {
        Ok(default_rope(theta(json)?.unwrap_or(context.theta)))
    } else {
        of_all_layers(json, context)
    }
}

fn default_rope(theta: f64) -> RopeConfig {
    RopeConfig {
        theta,
        scaling: RopeScaling::Yarn(Yarn {
            factor: 32.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: false,
        }),
    }
}

/// Softmax over the chosen experts; every layer has experts, with biases and clamped gates.
fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(128);
    let used = json.size("num_experts_per_tok", EXPERTS)?.unwrap_or(4);
    let number = |key, default| Ok(json.number(key, 1e-6..=1e6)?.unwrap_or(default) as f32);
    Ok(Some(ExpertsConfig {
        width: json.required_size("intermediate_size", INTERMEDIATE)?,
        layers: vec![true; layers],
        bias: true,
        gate: Gate::Clamped {
            limit: number("swiglu_limit", 7.0)?,
            slope: number("swiglu_alpha", 1.702)?,
        },
        ..ExpertsConfig::plain(
            Routing {
                score: Score::SoftmaxOfChosen,
                ..Routing::softmax(count, used, false)
            },
            ExpertNames::GPT_OSS,
        )
    }))
}

fn gguf_routing(keys: &Keys<'_>, routing: Routing) -> Result<Routing, LoadError> {
    const NAME: &str = "expert_gating_func";
    match keys.size(NAME, 0..=usize::MAX >> 1)? {
        None | Some(0 | 3) => Ok(Routing {
            score: Score::SoftmaxOfChosen,
            sum: WeightSum::AsScored,
            ..routing
        }),
        Some(other) => {
            let reason = format!("is {other}, supported: 3 (softmax over the chosen experts)");
            Err(keys.error(NAME, reason))
        }
    }
}
