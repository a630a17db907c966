//! The defaults of gpt-oss, where its configuration does not say them.

use super::experts::{ExpertNames, ExpertsConfig, count_key};
use super::limits::{EXPERTS, INTERMEDIATE};
use crate::error::LoadError;
use crate::kernels::Gate;
use crate::kernels::routing::{Routing, Score};
use crate::model::json_file::JsonFile;
use crate::model::rope::{RopeConfig, RopeScaling, Yarn};

/// The default clamps.
pub(crate) const GATE: Gate = Gate::Clamped {
    limit: 7.0,
    slope: 1.702,
};

/// The default rotation.
pub(super) fn rope(theta: f64) -> RopeConfig {
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

/// Softmax over the chosen; every layer has experts, with biases and clamped gates.
pub(super) fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
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
