//! The sliding windows that a file describes, and the layers with RoPE.

use super::keys::Keys;
use crate::error::LoadError;
use crate::model::config::Architecture;
use crate::model::config::limits::{CONTEXT, LAYERS};
use crate::model::config::windows::every_but;

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// Reads for each layer how many tokens a query sees, itself included; `None` for all of them.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: Architecture,
    layers: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    match architecture {
        Architecture::GptOss => {
            let window = keys.required(WINDOW, CONTEXT)?;
            let slides = pattern(keys, layers, 2)?.into_iter();
            Ok(slides.map(|slides| slides.then_some(window)).collect())
        }
        Architecture::Gemma2 | Architecture::Gemma3 | Architecture::Gemma4 => {
            let (absent, period) = match architecture {
                Architecture::Gemma2 => (Some(4096), 2),
                _ => (None, 6),
            };
            let given = keys.size(WINDOW, 0..=*CONTEXT.end())?.or(absent);
            let window = given.filter(|window| *window > 0);
            let slides = pattern(keys, layers, period)?.into_iter();
            Ok(slides.map(|slides| window.filter(|_| slides)).collect())
        }
        // In every layer; zero where there is none. llama.cpp's own runs of these files leave it out.
        Architecture::Phi3 => {
            let window = keys.size(WINDOW, 0..=*CONTEXT.end())?;
            Ok(vec![window.filter(|window| *window > 0); layers])
        }
        _ => refuse(keys).map(|()| vec![None; layers]),
    }
}

/// Which layers have RoPE: files of SmolLM3 have no key for it, and in all of its models every fourth layer has none.
pub(super) fn rotated(architecture: Architecture, layers: usize) -> Vec<bool> {
    match architecture {
        Architecture::SmolLm3 => every_but(4, layers),
        _ => vec![true; layers],
    }
}

/// Which layers have the window: the listed ones, or all but the last one of each period.
fn pattern(keys: &Keys<'_>, layers: usize, usual: usize) -> Result<Vec<bool>, LoadError> {
    if keys.metadata.is_list(&keys.key(PATTERN)) {
        return Ok(keys.flags(PATTERN, layers)?.unwrap_or_default());
    }
    let period = keys.size(PATTERN, 0..=*LAYERS.end())?.unwrap_or(usual);
    let slides = |layer: usize| period == 0 || layer % period < period - 1;
    Ok((0..layers).map(slides).collect())
}

/// In other architectures no key says which layers have the window. A window at least as long as the context changes
/// nothing.
fn refuse(keys: &Keys<'_>) -> Result<(), LoadError> {
    let context = keys.required("context_length", CONTEXT)?;
    match keys.size(WINDOW, 0..=usize::MAX >> 1)? {
        Some(window) if (1..context).contains(&window) => {
            let reason = format!(
                "is {window} in a model of {context} tokens of context: sliding windows are read from safetensors only, \
                 use the model's folder"
            );
            Err(keys.error(WINDOW, reason))
        }
        _ => Ok(()),
    }
}
