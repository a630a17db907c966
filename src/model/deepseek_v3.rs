//! DeepSeek-V3: DeepSeek-V2's layers with a different router.
//!
//! arXiv 2412.19437. Experts are scored by sigmoids. To choose experts, each one's correction bias is added to its
//! score, and groups rank by the sum of their best two scores; the weights of the chosen experts use the plain scores.

use crate::config::ModelConfig;
use crate::config::deepseek;
use crate::config::experts::ExpertsConfig;
use crate::config::latent::LatentDefaults;
use crate::config::limits::EXPERTS;
use crate::deepseek_v2;
use crate::family::{Defaults, Family, GgufExperts, GgufFamily, KeyNames};
use crate::gguf::keys::{Keys, ROUTER_NUMBERS};
use crate::json_file::JsonFile;
use crate::layer_spec::{FeedForwardSpec, LayerSpec, MixerSpec};
use souffleur_base::error::LoadError;
use souffleur_kernels::routing::{GroupScore, Groups, Routing, Score, WeightSum};

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        context: 4096,
        bos: Some(0),
        eos: Some(1),
        ..Defaults::LLAMA
    },
    latent: Some(LATENT),
    keys: KEYS,
    experts,
    gguf: GgufFamily {
        // In GGUF files only the router distinguishes DeepSeek-V2 from V3.
        by_experts: |experts| {
            let is_softmax = experts.is_some_and(|experts| !experts.is_sigmoid());
            is_softmax.then_some(&deepseek_v2::FAMILY)
        },
        ..GGUF
    },
    missing_on_cuda: Some("this family's experts"),
    ..Family::new("DeepseekV3ForCausalLM", "deepseek_v3", layer)
};

pub(crate) const LATENT: LatentDefaults = LatentDefaults {
    query_rank: 1536,
    plain_dim: 128,
    value_dim: 128,
    interleaved: None,
};

pub(crate) const KEYS: KeyNames = KeyNames {
    experts: Some(deepseek::COUNT_KEY),
    ..KeyNames::USUAL
};

pub(crate) const GGUF: GgufFamily = GgufFamily {
    experts: Some(GgufExperts {
        numbers: ROUTER_NUMBERS,
        renormalises: false,
        routing: gguf_routing,
        has_shared: true,
        ..GgufExperts::PLAIN
    }),
    // In these GGUF files YaRN scales only the scores, not cos and sin: `mscale` equals `mscale_all_dim`.
    yarn_mscales: |multiplier| Some((10.0 * multiplier, 10.0 * multiplier)),
    ..GgufFamily::named(Some("deepseek2"))
};

pub fn layer(_: &ModelConfig, _: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Latent,
        feed_forward: FeedForwardSpec::Experts,
    }
}

fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let defaults = deepseek::Defaults {
        count: 256,
        used: Some(8),
        width: 2048,
        shared: 1,
        dense_layers: deepseek::dense_layers(json, 3)?,
        scale: 2.5,
        groups: Some([8, 4]),
    };
    deepseek::corrected(json, layers, &defaults)
}

fn gguf_routing(keys: &Keys<'_>, plain: Routing) -> Result<Routing, LoadError> {
    let sigmoid = match keys.size("expert_gating_func", 0..=usize::MAX >> 1)? {
        None | Some(0 | 1) => false,
        Some(2) => true,
        Some(other) => {
            let reason = format!("is {other}, supported: 1 (softmax) and 2 (sigmoid)");
            return Err(keys.error("expert_gating_func", reason));
        }
    };
    let groups = |name| keys.size(name, 0..=*EXPERTS.end());
    let (all, used) = (
        groups("expert_group_count")?,
        groups("expert_group_used_count")?,
    );
    let groups = Groups {
        n_groups: all.unwrap_or(0),
        n_used: used.unwrap_or(0),
        score: if sigmoid {
            GroupScore::BestTwo
        } else {
            GroupScore::Best
        },
    };
    let limited = groups.n_used > 0 && groups.n_used < groups.n_groups;
    let scale = keys.number("expert_weights_scale", 0.0..=1e6)?;
    let routing = Routing {
        score: if sigmoid {
            Score::Sigmoid
        } else {
            Score::Softmax
        },
        sum: match plain.sum {
            WeightSum::One { .. } => WeightSum::One { added: 1e-20 },
            WeightSum::AsScored => WeightSum::AsScored,
        },
        groups: limited.then_some(groups),
        // An absent key and 0 mean a scale of one.
        scale: scale.filter(|scale| *scale != 0.0).unwrap_or(1.0) as f32,
        ..plain
    };
    deepseek::check_groups(&routing, &keys.key("expert_count"))
        .map_err(|reason| keys.error("expert_group_count", reason))?;
    Ok(routing)
}
