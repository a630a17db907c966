//! Ministral 3: Mistral with YaRN and queries scaled by position.
//!
//! A rotated query is multiplied by `1 + beta * ln(1 + floor(position / original context))`, as in Llama 4, which keeps
//! attention sharp over long contexts. Keys are not scaled, so cached keys remain valid.

use crate::config::ModelConfig;
use crate::config::scales::{SLOPES, Scales};
use crate::family::{AttentionBias, Defaults, Family, GgufFamily, Windows};
use crate::gguf::keys::QUERY_SLOPE;
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, LayerSpec};
use crate::mistral;
use crate::rope::{MAX_POSITIONS, RopeConfig, RopeContext, RopeScaling, Yarn, of_all_layers};
use souffleur_base::error::LoadError;
use souffleur_kernels::rope::PositionScale;

pub(crate) static FAMILY: Family = Family {
    decoder_of: &[mistral::WITH_VISION],
    defaults: Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        context: 262_144,
        eps: 1e-5,
        ..Defaults::LLAMA
    },
    windows: Windows::EVERYWHERE,
    attention_bias: AttentionBias::Never,
    rope,
    scales: |json, widths| {
        Ok(Scales {
            queries: queries(json, widths.max_positions)?,
            ..Scales::NONE
        })
    },
    gguf: GgufFamily {
        numbers: &[QUERY_SLOPE],
        paired_rows: true,
        // llama.cpp assumes an `mscale` of 1.
        yarn_mscales: |all| (all != 0.0).then_some((1.0, all)),
        ..GgufFamily::named(Some("mistral3"))
    },
    ..Family::new("Ministral3ForCausalLM", "ministral3", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    let attention = AttentionSpec {
        query_scale: config.query_scale,
        ..AttentionSpec::plain(config, layer)
    };
    LayerSpec::dense(attention, config)
}

fn rope(json: &JsonFile, context: &RopeContext) -> Result<RopeConfig, LoadError> {
    if RopeConfig::is_absent(json)? {
        Ok(default_rope())
    } else {
        of_all_layers(json, context)
    }
}

fn default_rope() -> RopeConfig {
    RopeConfig {
        theta: 1e6,
        scaling: RopeScaling::Yarn(Yarn {
            factor: 16.0,
            original_max_position_embeddings: 16_384,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: Some(1.0),
            mscale_all_dim: Some(1.0),
            truncate: true,
        }),
    }
}

/// Reads the scale of queries from the RoPE parameters; without these it is the default.
fn queries(json: &JsonFile, max_positions: usize) -> Result<Option<PositionScale>, LoadError> {
    if RopeConfig::is_absent(json)? {
        return Ok(Some(PositionScale {
            slope: 0.1,
            period: 16_384,
        }));
    }
    let filled = |rope: &JsonFile| !rope.entries().is_empty();
    let rope = match json.object("rope_scaling")?.filter(filled) {
        None => json.object("rope_parameters")?,
        some => some,
    };
    let slope = rope
        .as_ref()
        .map(|rope| rope.number("llama_4_scaling_beta", SLOPES))
        .transpose()?
        .flatten();
    let Some(slope) = slope.filter(|slope| *slope != 0.0) else {
        return Ok(None);
    };
    let mut period = max_positions;
    for file in rope.iter().chain([json]) {
        let given = file.size("original_max_position_embeddings", 1..=MAX_POSITIONS)?;
        period = given.unwrap_or(period);
    }
    Ok(Some(PositionScale {
        slope: slope as f32,
        period: period as u32,
    }))
}
