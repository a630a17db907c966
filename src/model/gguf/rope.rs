//! RoPE configuration from GGUF metadata, or from a tensor of divisors.

use std::sync::Arc;

use super::Gguf;
use super::keys::Keys;
use super::names::{ROPE_FACTORS, ROPE_FREQS};
use crate::config::limits::CONTEXT;
use crate::family::GgufFamily;
use crate::rope::{LongRope, RopeConfig, RopeScaling, Yarn};
use souffleur_base::error::LoadError;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::TensorView;

/// Limits of the divisors of frequencies; a very large divisor disables RoPE for its pair.
const DIVISORS: std::ops::RangeInclusive<f32> = 1e-6..=1e32;

/// YaRN's `mscale_all_dim`, or a tenth of it: see [`GgufFamily::yarn_mscales`].
const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
const SCALING: &str = "rope.scaling.type";
/// Whether the model was trained on the scaled context. False means no RoPE in families that read it so.
const FINETUNED: &str = "rope.scaling.finetuned";

pub(super) fn rope(
    gguf: &Gguf,
    keys: &Keys<'_>,
    family: &GgufFamily,
    (head_dim, max_positions): (usize, usize),
) -> Result<RopeConfig, LoadError> {
    let theta = keys.number("rope.freq_base", 1.000_001..=1e15)?;
    if let Some(both) = long_rope(gguf, keys, head_dim, max_positions)? {
        return Ok(RopeConfig {
            theta: theta.unwrap_or(10_000.0),
            scaling: RopeScaling::LongRope(both.into()),
        });
    }
    let finetuned = keys.metadata.flag(&keys.key(FINETUNED))?;
    if family.reads_finetuned && finetuned == Some(false) {
        let reason = "is false: models of this architecture without RoPE are not supported";
        return Err(keys.error(FINETUNED, reason));
    }
    let scaling = scaling(keys, family, max_positions)?;
    let scaling = match (divisors(gguf, ROPE_FREQS, head_dim)?, scaling) {
        (None, scaling) => scaling,
        (Some(divisors), RopeScaling::Default) => RopeScaling::Divided(divisors),
        (Some(_), _) => {
            let reason = format!(
                "and the tensor {ROPE_FREQS} both scale the rotation: only one of them is supported"
            );
            return Err(keys.error(SCALING, reason));
        }
    };
    Ok(RopeConfig {
        theta: theta.unwrap_or(10_000.0),
        scaling,
    })
}

/// RoPE of short and long sequences, if the file has both.
fn long_rope(
    gguf: &Gguf,
    keys: &Keys<'_>,
    head_dim: usize,
    max_positions: usize,
) -> Result<Option<LongRope>, LoadError> {
    let [short_name, long_name] = ROPE_FACTORS;
    let found = (
        divisors(gguf, short_name, head_dim)?,
        divisors(gguf, long_name, head_dim)?,
    );
    let (short, long) = match found {
        (Some(short), Some(long)) => (short, long),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(without_counterpart(gguf, short_name, long_name)),
        (None, Some(_)) => return Err(without_counterpart(gguf, long_name, short_name)),
    };
    let kind = keys.text(SCALING)?;
    if let Some(other) = kind.filter(|kind| !["none", "longrope"].contains(kind)) {
        let reason = format!(
            "is {other:?}, but {short_name} scales the rotation too: only one of them is supported"
        );
        return Err(keys.error(SCALING, reason));
    }
    let original = keys.size("rope.scaling.original_context_length", CONTEXT)?;
    let factor = keys.number("rope.scaling.attn_factor", 1e-6..=1e6)?;
    Ok(Some(LongRope {
        short: short.to_vec(),
        long: long.to_vec(),
        original_max_position_embeddings: original.unwrap_or(max_positions),
        attention_factor: factor.unwrap_or(1.0),
    }))
}

/// The error for a tensor without its counterpart.
fn without_counterpart(gguf: &Gguf, found: &str, missing: &str) -> LoadError {
    let reason = format!("is present without {missing}: convert the model again");
    gguf.metadata().error(found, reason)
}

fn scaling(
    keys: &Keys<'_>,
    family: &GgufFamily,
    max_positions: usize,
) -> Result<RopeScaling, LoadError> {
    // 0 means no scaling, as in llama.cpp.
    let unless_zero = |name| {
        Ok(keys
            .number(name, 0.0..=1e6)?
            .filter(|factor| *factor != 0.0))
    };
    let factor = match unless_zero("rope.scaling.factor")? {
        None => unless_zero("rope.scale_linear")?,
        some => some,
    };
    match (keys.text(SCALING)?, factor) {
        (Some("none"), _) | (None | Some("linear"), None | Some(1.0)) => Ok(RopeScaling::Default),
        (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
        (Some("yarn"), factor) => {
            let yarn = yarn(keys, family, factor, max_positions)?;
            Ok(RopeScaling::Yarn(yarn))
        }
        (Some(other), _) => {
            let reason =
                format!("is {other:?}, supported: none, linear and yarn; use another model");
            Err(keys.error(SCALING, reason))
        }
    }
}

fn yarn(
    keys: &Keys<'_>,
    family: &GgufFamily,
    factor: Option<f64>,
    max_positions: usize,
) -> Result<Yarn, LoadError> {
    let multiplier = keys.number(LOG_MULTIPLIER, 0.0..=1e6)?;
    let mscales = multiplier.and_then(family.yarn_mscales);
    let accepted_multiplier = mscales.and(multiplier).unwrap_or(0.0);
    for (name, neutral) in [
        ("rope.scaling.yarn_ext_factor", 1.0),
        (LOG_MULTIPLIER, accepted_multiplier),
    ] {
        let value = keys.number(name, f64::MIN..=f64::MAX)?;
        if let Some(value) = value.filter(|value| *value != neutral && *value >= 0.0) {
            return Err(keys.error(
                name,
                format!("is {value}, supported: {neutral}; use another model"),
            ));
        }
    }
    let original = keys.size("rope.scaling.original_context_length", CONTEXT)?;
    let original_max_position_embeddings = original.unwrap_or(max_positions);
    let number = |name| keys.number(name, 1e-6..=1e6);
    let mut yarn = Yarn {
        factor: factor.unwrap_or(1.0),
        original_max_position_embeddings,
        beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        attention_factor: number("rope.scaling.yarn_attn_factor")?,
        mscale: mscales.map(|mscales| mscales.0),
        mscale_all_dim: mscales.map(|mscales| mscales.1),
        truncate: family.yarn_truncates,
    };
    if let Some(times) = number("rope.scaling.attn_factor")?.filter(|times| *times != 1.0) {
        yarn.attention_factor = Some(times * yarn.attention_scale());
    }
    if yarn.beta_fast < yarn.beta_slow {
        let reason = format!(
            "is {}, expected at least yarn_beta_slow, {}: convert the model again",
            yarn.beta_fast, yarn.beta_slow
        );
        return Err(keys.error("rope.scaling.yarn_beta_fast", reason));
    }
    Ok(yarn)
}

/// The frequency divisors, one for each pair of the `head_dim` rotated elements.
fn divisors(gguf: &Gguf, name: &str, head_dim: usize) -> Result<Option<Arc<[f32]>>, LoadError> {
    let Some(tensor) = gguf.tensor(name) else {
        return Ok(None);
    };
    let broken = |reason: String| tensor.error(format!("{reason}: convert the model again"));
    let (shape, element) = (&tensor.info.shape, tensor.info.element);
    if element.name != "F32" || shape.as_slice() != [head_dim / 2] {
        let reason = format!(
            "has type {} and shape {shape:?}, expected F32 and [{}]",
            element.name,
            head_dim / 2
        );
        return Err(broken(reason));
    }
    let divisors = TensorView::plain(Dtype::F32, shape, tensor.bytes()).to_f32();
    match divisors.iter().find(|divisor| !DIVISORS.contains(divisor)) {
        None => Ok(Some(divisors.into())),
        Some(wrong) => Err(broken(format!(
            "holds {wrong}, expected numbers from 1e-6 to 1e32"
        ))),
    }
}
