//! The rotation that a file asks for: keys of its metadata, or a tensor of divisors.

use std::sync::Arc;

use super::Gguf;
use super::config::Keys;
use super::names::ROPE_FREQS;
use crate::error::LoadError;
use crate::kernels::dtype::Dtype;
use crate::kernels::tensor_view::TensorView;
use crate::model::config::limits::CONTEXT;
use crate::model::rope::{RopeConfig, RopeScaling, Yarn};

/// The numbers that a frequency may be divided by; a very large one means that the pair does not turn.
const DIVISORS: std::ops::RangeInclusive<f32> = 1e-6..=1e32;

/// A tenth of YaRN's `mscale_all_dim`.
const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// Reads the rotation of heads of `head_dim` elements.
pub(super) fn rope(
    gguf: &Gguf,
    keys: &Keys<'_>,
    head_dim: usize,
    max_positions: usize,
) -> Result<RopeConfig, LoadError> {
    let theta = keys.number("rope.freq_base", 1.000_001..=1e15)?;
    let scaling = scaling(keys, max_positions)?;
    let scaling = match (divisors(gguf, head_dim)?, scaling) {
        (None, scaling) => scaling,
        (Some(divisors), RopeScaling::Default) => RopeScaling::Divided(divisors),
        (Some(_), _) => {
            let reason = format!(
                "and the tensor {ROPE_FREQS} both scale the rotation, only one of them is supported"
            );
            return Err(keys.error("rope.scaling.type", reason));
        }
    };
    Ok(RopeConfig {
        theta: theta.unwrap_or(10_000.0),
        scaling,
    })
}

fn scaling(keys: &Keys<'_>, max_positions: usize) -> Result<RopeScaling, LoadError> {
    // A factor of 0 means that there is none, as in llama.cpp.
    let unless_zero = |name| {
        Ok(keys
            .number(name, 0.0..=1e6)?
            .filter(|factor| *factor != 0.0))
    };
    let factor = match unless_zero("rope.scaling.factor")? {
        None => unless_zero("rope.scale_linear")?,
        some => some,
    };
    match (keys.text("rope.scaling.type")?, factor) {
        (Some("none"), _) | (None | Some("linear"), None | Some(1.0)) => Ok(RopeScaling::Default),
        (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
        (Some("yarn"), factor) => yarn(keys, factor, max_positions).map(RopeScaling::Yarn),
        (Some(other), _) => {
            let reason =
                format!("is {other:?}, supported are none, linear and yarn: use another model");
            Err(keys.error("rope.scaling.type", reason))
        }
    }
}

fn yarn(keys: &Keys<'_>, factor: Option<f64>, max_positions: usize) -> Result<Yarn, LoadError> {
    let multiplier = keys.number(LOG_MULTIPLIER, 0.0..=1e6)?;
    let sharpened = multiplier.filter(|_| keys.architecture == "deepseek2");
    for (name, neutral) in [
        ("rope.scaling.yarn_ext_factor", 1.0),
        (LOG_MULTIPLIER, sharpened.unwrap_or(0.0)),
    ] {
        let value = keys.number(name, f64::MIN..=f64::MAX)?;
        if let Some(value) = value.filter(|value| *value != neutral && *value >= 0.0) {
            return Err(keys.error(
                name,
                format!("is {value}, supported is {neutral}: use another model"),
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
        // These files have scores sharpened and not cos and sin: both weights are the same.
        mscale: sharpened.map(|multiplier| 10.0 * multiplier),
        mscale_all_dim: sharpened.map(|multiplier| 10.0 * multiplier),
        // Not in files; this model alone was trained without.
        truncate: keys.architecture != "gpt-oss",
    };
    if let Some(times) = number("rope.scaling.attn_factor")?.filter(|times| *times != 1.0) {
        yarn.attention_factor = Some(times * yarn.attention_scale());
    }
    if yarn.beta_fast < yarn.beta_slow {
        let reason = format!(
            "is {}, expected at least yarn_beta_slow, {}",
            yarn.beta_fast, yarn.beta_slow
        );
        return Err(keys.error("rope.scaling.yarn_beta_fast", reason));
    }
    Ok(yarn)
}

/// The divisors of Llama 3.1's frequencies, one for each pair of a head's elements.
fn divisors(gguf: &Gguf, head_dim: usize) -> Result<Option<Arc<[f32]>>, LoadError> {
    let Some(tensor) = gguf.tensor(ROPE_FREQS) else {
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
