//! Numbers that some families multiply their activations with.

use super::architecture::Architecture;
use crate::error::LoadError;
use crate::kernels::rope::PositionScale;
use crate::model::json_file::JsonFile;
use crate::model::rope::{MAX_POSITIONS, RopeConfig};

/// The values that a factor may have.
pub(crate) const FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// How fast queries may grow with their positions.
pub(crate) const SLOPES: std::ops::RangeInclusive<f64> = 0.0..=1e3;

/// The factors of a model; `None` where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Scales {
    /// On embeddings.
    pub embedding: Option<f32>,
    /// On a block's output before the residual add.
    pub residual: Option<f32>,
    /// On attention's scores, instead of 1/sqrt of a query's elements.
    pub scores: Option<f32>,
    /// The divisor of logits.
    pub logits_divisor: Option<f32>,
    /// On queries, by their positions.
    pub queries: Option<PositionScale>,
}

impl Scales {
    pub(super) fn from_json(
        json: &JsonFile,
        architecture: Architecture,
        max_positions: usize,
    ) -> Result<Self, LoadError> {
        match architecture {
            Architecture::Granite => {
                let factor = |key| Ok(json.number(key, FACTORS)?.unwrap_or(1.0));
                Ok(Self {
                    embedding: unless_one(factor("embedding_multiplier")?),
                    residual: unless_one(factor("residual_multiplier")?),
                    scores: Some(factor("attention_multiplier")? as f32),
                    logits_divisor: unless_one(factor("logits_scaling")?),
                    queries: None,
                })
            }
            Architecture::Ministral3 => Ok(Self {
                queries: queries(json, max_positions)?,
                ..Self::default()
            }),
            _ => Ok(Self::default()),
        }
    }
}

/// A factor that changes something.
pub(crate) fn unless_one(factor: f64) -> Option<f32> {
    Some(factor as f32).filter(|factor| *factor != 1.0)
}

/// The growth of Ministral 3's queries, which its rotation's parameters hold; a model without any has the default.
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
