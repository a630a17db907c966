//! RoPE configuration: base, scaling, and the resulting frequencies.
//!
//! A rotation may depend only on the position and on properties fixed when a sequence begins
//! ([`RopeConfig::long_above`]), so that cached keys stay valid.

mod long;
mod sections;

use std::f64::consts::PI;
use std::sync::Arc;

use serde_json::Value;

pub use self::long::LongRope;
pub use self::sections::MropeSections;
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;
use souffleur_kernels::rope::Rope;

/// Maximum configured context, in tokens.
pub(crate) const MAX_POSITIONS: usize = 1 << 27;

const SUPPORTED: &str = "default, linear, llama3, yarn, longrope";

pub(crate) struct RopeContext {
    pub theta: f64,
    pub max_positions: usize,
    pub rotary_dim: usize,
}

/// Reads the RoPE of families with the same RoPE in all layers.
pub(crate) fn of_all_layers(
    json: &JsonFile,
    context: &RopeContext,
) -> Result<RopeConfig, LoadError> {
    let rope = RopeConfig::from_json(json, context.theta, (context.max_positions, None))?;
    rope.check_pairs(json, context.rotary_dim)?;
    Ok(rope)
}

#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f64,
    pub scaling: RopeScaling,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    Default,
    /// Position interpolation: all frequencies are divided.
    Linear {
        factor: f64,
    },
    /// Llama 3.1: frequencies of long wavelengths are divided, of short ones kept, of others blended.
    Llama3 {
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` tokens are long.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` tokens are short.
        high_freq_factor: f64,
        /// Trained context before scaling, in tokens.
        original_max_position_embeddings: usize,
    },
    /// All frequencies are divided, and only the first pairs of a head rotate.
    Proportional {
        /// Share of the pairs that rotate.
        part: f64,
        factor: f64,
    },
    /// YaRN: blends divided and unchanged frequencies, by dimension, and scales attention scores.
    Yarn(Yarn),
    /// Each pair's frequency has its own divisor, as GGUF files store Llama 3.1's scaling.
    Divided(Arc<[f32]>),
    /// LongRoPE: as `Divided`, with two sets, one for long sequences.
    LongRope(Arc<LongRope>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    /// Trained context before scaling, in tokens.
    pub original_max_position_embeddings: usize,
    /// Dimensions with more rotations than this over the original context keep their frequency.
    pub beta_fast: f64,
    /// Dimensions with fewer rotations than this over the original context have their frequency divided by `factor`.
    pub beta_slow: f64,
    /// Factor on cos and sin; `None` derives it from `factor`.
    pub attention_factor: Option<f64>,
    /// Weight in the numerator of the derived attention factor; used with `mscale_all_dim` only.
    pub mscale: Option<f64>,
    /// Weight in the denominator of the derived attention factor; used with `mscale` only.
    pub mscale_all_dim: Option<f64>,
    /// Whether the first and last blended dimensions are rounded to whole numbers.
    pub truncate: bool,
}

impl RopeConfig {
    /// Reads `rope_scaling`, else `rope_parameters`, else `rope_theta` alone. `contexts` are the model's context, and
    /// the default original context of families that configure it outside of the RoPE parameters.
    pub(crate) fn from_json(
        json: &JsonFile,
        default_theta: f64,
        contexts: (usize, Option<usize>),
    ) -> Result<Self, LoadError> {
        let filled = |key| {
            Ok(json
                .object(key)?
                .filter(|object| !object.entries().is_empty()))
        };
        let rope = match filled("rope_scaling")? {
            None => filled("rope_parameters")?,
            some => some,
        };
        let outer_theta = theta(json)?;
        let Some(rope) = rope else {
            return Ok(Self {
                theta: outer_theta.unwrap_or(default_theta),
                scaling: RopeScaling::Default,
            });
        };
        if let Some((key, _)) = rope
            .entries()
            .iter()
            .find(|(_, value)| matches!(value, Value::Object(_)))
        {
            return Err(rope.error(
                key,
                "sets RoPE for one layer type: all layers must share one RoPE",
            ));
        }
        Ok(Self {
            theta: theta(&rope)?.or(outer_theta).unwrap_or(default_theta),
            scaling: RopeScaling::from_json(json, &rope, contexts)?,
        })
    }

    /// Reads the RoPE of one kind of layers from its parameters, `rope`.
    pub(crate) fn of_kind(
        outer: &JsonFile,
        rope: Option<&JsonFile>,
        default_theta: f64,
        max_positions: usize,
    ) -> Result<Self, LoadError> {
        let Some(rope) = rope else {
            return Ok(Self {
                theta: default_theta,
                scaling: RopeScaling::Default,
            });
        };
        let part = rope.number("partial_rotary_factor", 0.0..=1.0)?;
        let scaling = match (rope.text("rope_type")?, part) {
            (Some("proportional"), part) => RopeScaling::Proportional {
                part: part.unwrap_or(1.0),
                factor: rope.number("factor", 1e-6..=1e6)?.unwrap_or(1.0),
            },
            (_, None | Some(1.0)) => RopeScaling::from_json(outer, rope, (max_positions, None))?,
            (_, Some(part)) => {
                let reason =
                    format!("is {part}, supported: 1, except for rope_type \"proportional\"");
                return Err(rope.error("partial_rotary_factor", reason));
            }
        };
        Ok(Self {
            theta: theta(rope)?.unwrap_or(default_theta),
            scaling,
        })
    }

    pub(crate) fn check_pairs(&self, json: &JsonFile, rotary_dim: usize) -> Result<(), LoadError> {
        match &self.scaling {
            RopeScaling::LongRope(long_rope) => long_rope.check_pairs(json, rotary_dim),
            _ => Ok(()),
        }
    }

    /// Sequences longer than this, in tokens, use the long frequencies; `None` without LongRoPE.
    ///
    /// Here a sequence's length is its prompt plus its maximum output: the length never changes, so cached keys stay
    /// valid.
    pub fn long_above(&self) -> Option<usize> {
        match &self.scaling {
            RopeScaling::LongRope(long_rope) => Some(long_rope.original_max_position_embeddings),
            _ => None,
        }
    }

    /// Whether no RoPE is configured, except for the base. An empty `rope_parameters` configures the default RoPE.
    pub(crate) fn is_absent(json: &JsonFile) -> Result<bool, LoadError> {
        let scaling = json.object("rope_scaling")?;
        let is_scaled = scaling.is_some_and(|scaling| !scaling.entries().is_empty());
        Ok(!is_scaled && json.object("rope_parameters")?.is_none())
    }

    /// Context to which YaRN extends the original one, in tokens.
    pub fn extended_positions(&self) -> Option<usize> {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => {
                let extended = yarn.original_max_position_embeddings as f64 * yarn.factor;
                Some((extended as usize).min(MAX_POSITIONS))
            }
            _ => None,
        }
    }

    /// Factor on latent attention's scores, in addition to the factor on cos and sin.
    pub fn score_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => {
                let scale = yarn
                    .mscale_all_dim
                    .map_or(1.0, |weight| yarn.mscale_of(weight));
                scale * scale
            }
            _ => 1.0,
        }
    }

    /// The frequencies for heads of `head_dim` elements.
    ///
    /// # Panics
    /// If there are fewer divisors than pairs.
    pub fn frequencies(&self, head_dim: usize) -> Rope {
        let dim = head_dim as f64;
        // Rounded to f32 where torch rounds: large positions multiply any difference in frequency.
        let theta_power = |pair: usize| {
            let exponent = (2 * pair) as f32 / head_dim as f32;
            self.theta.powf(f64::from(exponent)) as f32
        };
        let divided = |divisors: &[f32]| -> Vec<f32> {
            let pairs = 0..head_dim / 2;
            pairs
                .map(|pair| (divisors[pair] * theta_power(pair)).recip())
                .collect()
        };
        if let RopeScaling::LongRope(long_rope) = &self.scaling {
            return Rope {
                inv_freq: divided(&long_rope.short),
                long_inv_freq: Some(divided(&long_rope.long)),
                axes: None,
                attention_scale: long_rope.attention_factor as f32,
            };
        }
        let frequencies = (0..head_dim / 2).map(|pair| {
            let plain = f64::from(theta_power(pair).recip());
            match &self.scaling {
                RopeScaling::LongRope(_) => unreachable!("LongRoPE returned above"),
                RopeScaling::Default => plain,
                RopeScaling::Linear { factor } => plain / factor,
                RopeScaling::Proportional { part, factor } => {
                    if pair < (part * dim / 2.0) as usize {
                        plain / factor
                    } else {
                        0.0
                    }
                }
                RopeScaling::Divided(divisors) => plain / f64::from(divisors[pair]),
                RopeScaling::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings,
                } => {
                    let turns = *original_max_position_embeddings as f64 * plain / (2.0 * PI);
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    blend(plain / factor, plain, kept.clamp(0.0, 1.0))
                }
                RopeScaling::Yarn(yarn) => {
                    let kept = 1.0 - yarn.interpolated(pair, self.theta, dim);
                    blend(plain / yarn.factor, plain, kept)
                }
            }
        });
        Rope {
            inv_freq: frequencies.map(|frequency| frequency as f32).collect(),
            long_inv_freq: None,
            axes: None,
            attention_scale: match &self.scaling {
                RopeScaling::Yarn(yarn) => yarn.attention_scale() as f32,
                _ => 1.0,
            },
        }
    }
}

impl RopeScaling {
    fn from_json(
        outer: &JsonFile,
        rope: &JsonFile,
        (max_positions, outer_default): (usize, Option<usize>),
    ) -> Result<Self, LoadError> {
        let key = if rope.value("rope_type").is_some() {
            "rope_type"
        } else {
            "type"
        };
        let original = || -> Result<usize, LoadError> {
            let key = "original_max_position_embeddings";
            let limits = 1..=MAX_POSITIONS;
            let given = match (outer.size(key, limits.clone())?, outer_default) {
                (Some(given), _) | (None, Some(given)) => Some(given),
                (None, None) => rope.size(key, limits)?,
            };
            Ok(given.unwrap_or(max_positions))
        };
        let long_rope = || {
            let both = LongRope::read(rope, original()?, max_positions)?;
            Ok(Self::LongRope(both))
        };
        match rope.text(key)?.unwrap_or("default") {
            "default" => Ok(Self::Default),
            "linear" => Ok(Self::Linear { factor: required(rope, "factor")? }),
            "llama3" => {
                let low_freq_factor = required(rope, "low_freq_factor")?;
                let high_freq_factor = required(rope, "high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    let reason = format!("is {high_freq_factor}, expected more than low_freq_factor, {low_freq_factor}");
                    return Err(rope.error("high_freq_factor", reason));
                }
                Ok(Self::Llama3 {
                    factor: required(rope, "factor")?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings: original()?,
                })
            }
            // Phi-3 has older names: `su`, and `yarn` with `long_factor`.
            "longrope" | "su" => long_rope(),
            "yarn" if rope.has("long_factor") => long_rope(),
            "yarn" => Ok(Self::Yarn(yarn(rope, original()?, max_positions)?)),
            "dynamic" => Err(rope.error(
                key,
                format!(
                    "is \"dynamic\": it changes the rotation of keys already cached when a sequence \
                     grows, so K/V cannot be reused; supported: {SUPPORTED}"
                ),
            )),
            other => Err(rope.error(key, format!("is {other:?}, supported: {SUPPORTED}"))),
        }
    }
}

fn yarn(rope: &JsonFile, original: usize, max_positions: usize) -> Result<Yarn, LoadError> {
    let positive = |key| rope.number(key, 1e-6..=1e6);
    // Zero means unset, as in transformers.
    let unless_zero = |key| Ok(rope.number(key, 0.0..=1e6)?.filter(|number| *number != 0.0));
    let yarn = Yarn {
        factor: positive("factor")?.unwrap_or(max_positions as f64 / original as f64),
        original_max_position_embeddings: original,
        beta_fast: unless_zero("beta_fast")?.unwrap_or(32.0),
        beta_slow: unless_zero("beta_slow")?.unwrap_or(1.0),
        attention_factor: positive("attention_factor")?,
        mscale: unless_zero("mscale")?,
        mscale_all_dim: unless_zero("mscale_all_dim")?,
        truncate: rope.flag_or_null("truncate", true)?,
    };
    if yarn.beta_fast < yarn.beta_slow {
        let reason = format!(
            "is {}, expected at least beta_slow, {}",
            yarn.beta_fast, yarn.beta_slow
        );
        return Err(rope.error("beta_fast", reason));
    }
    Ok(yarn)
}

fn required(rope: &JsonFile, key: &str) -> Result<f64, LoadError> {
    rope.number(key, 1e-6..=1e6)?
        .ok_or_else(|| rope.error(key, "is missing"))
}

pub(crate) fn theta(json: &JsonFile) -> Result<Option<f64>, LoadError> {
    json.number("rope_theta", 1.000_001..=1e15)
}

pub(crate) fn rotary_part(json: &JsonFile) -> Result<Option<f64>, LoadError> {
    let part = |json: &JsonFile| json.number("partial_rotary_factor", 0.0..=1.0);
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(part) = json
            .object(key)?
            .map(|rope| part(&rope))
            .transpose()?
            .flatten()
        {
            return Ok(Some(part));
        }
    }
    part(json)
}

pub(crate) fn refuse_partial(json: &JsonFile) -> Result<(), LoadError> {
    match rotary_part(json)? {
        None | Some(1.0) => Ok(()),
        Some(part) => Err(json.error(
            "partial_rotary_factor",
            format!("is {part}, supported: 1 (the whole head)"),
        )),
    }
}

fn blend(scaled: f64, plain: f64, kept: f64) -> f64 {
    scaled * (1.0 - kept) + plain * kept
}

impl Yarn {
    /// Interpolation weight of a pair: 0 keeps its frequency, 1 divides it by `factor`.
    fn interpolated(&self, pair: usize, theta: f64, dim: f64) -> f64 {
        let original = self.original_max_position_embeddings as f64;
        let pair_of_turns =
            |turns: f64| dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (pair_of_turns(self.beta_fast), pair_of_turns(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0)
    }

    fn mscale_of(&self, weight: f64) -> f64 {
        match self.factor {
            factor if factor <= 1.0 => 1.0,
            factor => 0.1 * weight * factor.ln() + 1.0,
        }
    }

    pub(crate) fn attention_scale(&self) -> f64 {
        let by = |weight: f64| self.mscale_of(weight);
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(mscale), Some(all)) => by(mscale) / by(all),
            _ => by(1.0),
        }
    }
}

#[cfg(test)]
mod tests;
