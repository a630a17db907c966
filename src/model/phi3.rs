//! Phi-3, Phi-3.5 and Phi-4-mini: Mistral with fused projections and LongRoPE.
//!
//! Files fuse q, k and v in one matrix, and gate and up in another; [`crate::weights`] splits both. Phi-4-mini
//! has partial rotary. Long contexts have other frequencies than short ones (LongRoPE, arXiv 2402.13753), chosen when a
//! sequence begins ([`RopeConfig::long_above`](crate::rope::RopeConfig::long_above)). A configured window
//! applies to every layer.

use crate::config::ModelConfig;
use crate::family::{AttentionBias, Defaults, Family, GgufFamily, GgufWindows, Windows};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, LayerSpec};
use crate::rope::{RopeConfig, RopeContext, RopeScaling};
use souffleur_base::error::LoadError;

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        context: 4096,
        eps: 1e-5,
        eos: Some(32_000),
        ..Defaults::LLAMA
    },
    windows: Windows::EVERYWHERE,
    partial_rotary: Some(1.0),
    attention_bias: AttentionBias::Never,
    fused: true,
    rope,
    gguf: GgufFamily {
        windows: GgufWindows::Everywhere,
        ..GgufFamily::named(Some("phi3"))
    },
    ..Family::new("Phi3ForCausalLM", "phi3", layer)
};

/// Default original context, in tokens. The key for it is outside of the RoPE parameters.
const ORIGINAL_CONTEXT: usize = 4096;

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}

/// LongRoPE is the only supported scaling.
fn rope(json: &JsonFile, context: &RopeContext) -> Result<RopeConfig, LoadError> {
    let contexts = (context.max_positions, Some(ORIGINAL_CONTEXT));
    let rope = RopeConfig::from_json(json, context.theta, contexts)?;
    rope.check_pairs(json, context.rotary_dim)?;
    let found = match rope.scaling {
        RopeScaling::Default | RopeScaling::LongRope(_) => return Ok(rope),
        RopeScaling::Linear { .. } => "linear",
        RopeScaling::Llama3 { .. } | RopeScaling::Divided(_) => "llama3",
        RopeScaling::Proportional { .. } => "proportional",
        RopeScaling::Yarn(_) => "yarn",
    };
    let reason = format!("has type {found}, supported for Phi-3: default and longrope");
    Err(json.error("rope_scaling", reason))
}
