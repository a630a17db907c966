//! Granite 3 and 4 without experts or states: Llama with four scale factors.
//!
//! The factors multiply embeddings and the outputs of attention and MLP before the residual add, replace
//! `1/sqrt(head_dim)` on attention scores, and divide logits. The factors keep activations at the same scale for
//! any width (arXiv 2203.03466). [`crate::blocks`] reads all four from the configuration
//! ([`ModelConfig::embedding_scale`] and the following fields).

use crate::config::ModelConfig;
use crate::config::limits::FACTORS;
use crate::config::scales::{Scales, Widths, unless_one};
use crate::family::{Family, GgufFamily};
use crate::gguf::keys::{EMBEDDING_SCALE, LOGITS_DIVISOR, RESIDUAL_SCALE, SCORE_SCALE};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, LayerSpec};
use souffleur_base::error::LoadError;

pub(crate) static FAMILY: Family = Family {
    mlp_bias: true,
    scales,
    gguf: GgufFamily {
        numbers: &[SCORE_SCALE, EMBEDDING_SCALE, RESIDUAL_SCALE, LOGITS_DIVISOR],
        paired_rows: true,
        reads_finetuned: true,
        ..GgufFamily::named(Some("granite"))
    },
    ..Family::new("GraniteForCausalLM", "granite", layer)
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec::dense(AttentionSpec::plain(config, layer), config)
}

fn scales(json: &JsonFile, _: &Widths) -> Result<Scales, LoadError> {
    let factor = |key| Ok::<f64, LoadError>(json.number(key, FACTORS)?.unwrap_or(1.0));
    Ok(Scales {
        embedding: unless_one(factor("embedding_multiplier")?),
        residual: unless_one(factor("residual_multiplier")?),
        scores: Some(factor("attention_multiplier")? as f32),
        logits_divisor: unless_one(factor("logits_scaling")?),
        queries: None,
    })
}
