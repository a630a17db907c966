//! What files of Gemma's families say, and what follows from it. Their norms are written as they are.

use super::config::Keys;
use crate::error::LoadError;
use crate::model::config::Architecture;
use crate::model::config::gemma::{GemmaConfig, WINDOW_THETA};
use crate::model::config::limits::FACTORS;
use crate::model::rope::{RopeConfig, RopeScaling};

/// The keys of the caps, which other families must not have.
pub(super) const CAPS: [&str; 2] = ["attn_logit_softcapping", "final_logit_softcapping"];

/// The layers of the models, of 27 billion weights, whose scores have another scale: Gemma 2 and 3.
const LARGEST: [usize; 2] = [46, 62];

pub(super) fn read(
    keys: &Keys<'_>,
    architecture: Architecture,
) -> Result<Option<GemmaConfig>, LoadError> {
    if !architecture.is_gemma() {
        return Ok(None);
    }
    let cap = |name: &str| {
        let cap = keys.number(name, 0.0..=*FACTORS.end())?;
        Ok(cap.filter(|cap| *cap != 0.0).map(|cap| cap as f32))
    };
    let theta = keys.number("rope.freq_base_swa", 1.000_001..=1e15)?;
    let theta = match architecture {
        Architecture::Gemma2 => theta,
        _ => theta.or(Some(WINDOW_THETA)),
    };
    Ok(Some(GemmaConfig {
        score_cap: cap(CAPS[0])?,
        logits_cap: cap(CAPS[1])?,
        norms_from_one: false,
        window_rope: theta.map(|theta| RopeConfig {
            theta,
            scaling: RopeScaling::Default,
        }),
    }))
}

/// The factor on scores: no key says it, and llama.cpp tells it from the number of layers.
pub(super) fn score_scale(layers: usize, hidden: usize, (heads, head_dim): (usize, usize)) -> f32 {
    let scalar = match LARGEST.contains(&layers) {
        true => hidden / heads,
        false => head_dim,
    };
    (scalar as f64).powf(-0.5) as f32
}
