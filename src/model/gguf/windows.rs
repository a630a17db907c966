//! Which layers of a GGUF model have a sliding window, and which have RoPE.

use super::keys::Keys;
use crate::config::limits::{CONTEXT, LAYERS};
use crate::config::windows::all_but_every_nth;
use crate::family::{Family, GgufWindows};
use souffleur_base::error::LoadError;

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// The window of each layer, including the query's own token; `None` for full attention.
pub(super) fn read(
    keys: &Keys<'_>,
    windows: GgufWindows,
    layers: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    let size = || keys.size(WINDOW, 0..=*CONTEXT.end());
    match windows {
        GgufWindows::Refused => refuse(keys).map(|()| vec![None; layers]),
        GgufWindows::Everywhere => {
            let window = size()?.filter(|window| *window > 0);
            Ok(vec![window; layers])
        }
        GgufWindows::Pattern {
            period,
            required,
            default,
        } => {
            let window = if required {
                Some(keys.required(WINDOW, CONTEXT)?)
            } else {
                size()?.or(default).filter(|window| *window > 0)
            };
            let slides = pattern(keys, layers, period)?.into_iter();
            Ok(slides.map(|slides| window.filter(|_| slides)).collect())
        }
    }
}

/// Whether each layer has RoPE. GGUF has no key for this; families with layers without RoPE have an interval.
pub(super) fn rotated(family: &Family, layers: usize) -> Vec<bool> {
    match family.no_rope_interval {
        Some(interval) => all_but_every_nth(interval, layers),
        None => vec![true; layers],
    }
}

/// Whether each layer has the window: as the file lists, or all layers but the last of each period.
fn pattern(keys: &Keys<'_>, layers: usize, usual: usize) -> Result<Vec<bool>, LoadError> {
    if keys.metadata.is_list(&keys.key(PATTERN)) {
        return Ok(keys.flags(PATTERN, layers)?.unwrap_or_default());
    }
    let period = keys.size(PATTERN, 0..=*LAYERS.end())?.unwrap_or(usual);
    let slides = |layer: usize| period == 0 || layer % period < period - 1;
    Ok((0..layers).map(slides).collect())
}

/// Rejects a window, since no key names its layers. A window at least as long as the context has no effect.
fn refuse(keys: &Keys<'_>) -> Result<(), LoadError> {
    let context = keys.required("context_length", CONTEXT)?;
    match keys.size(WINDOW, 0..=usize::MAX >> 1)? {
        Some(window) if (1..context).contains(&window) => {
            let reason = format!(
                "is {window} in a model with a context of {context} tokens: sliding windows in GGUF files of this \
                 architecture are not supported, use the model's safetensors folder"
            );
            Err(keys.error(WINDOW, reason))
        }
        _ => Ok(()),
    }
}
