//! Which layers have a sliding window, and which have RoPE.

use super::limits::{CONTEXT, LAYERS};
use crate::family::{Family, Slides, WindowLayers};
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

const PATTERN: &str = "sliding_window_pattern";

/// The window of each layer, including the query's own token; `None` for full attention.
pub(super) fn read(
    json: &JsonFile,
    family: &Family,
    layers: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    let window = window(json, family)?;
    let mut windows = match kinds(json, family, layers)? {
        Some(kinds) => {
            let kinds = kinds.into_iter();
            let of_kind = kinds.map(|kind| layer_window(json, kind, window));
            of_kind.collect::<Result<Vec<_>, _>>()?
        }
        None => by_layer(json, family, layers)?
            .into_iter()
            .map(|slides| window.filter(|_| slides))
            .collect(),
    };
    if let Some(last) = windows.last_mut().filter(|_| family.windows.last_is_full) {
        *last = None;
    }
    Ok(windows)
}

fn window(json: &JsonFile, family: &Family) -> Result<Option<usize>, LoadError> {
    const KEY: &str = "sliding_window";
    let slides = match family.windows.slides {
        Slides::Never => false,
        Slides::Always => true,
        Slides::ByKey => json.flag("use_sliding_window")?.unwrap_or(false),
    };
    let given = json.size(KEY, CONTEXT)?;
    let default = family.windows.default.filter(|_| !json.has(KEY));
    let window = given.or(default).filter(|_| slides);
    if window.is_none() && family.windows.required {
        return Err(json.error(KEY, "is null, expected a number of tokens"));
    }
    Ok(window)
}

/// `layer_types`, in families that read it.
fn kinds<'a>(
    json: &'a JsonFile,
    family: &Family,
    layers: usize,
) -> Result<Option<Vec<&'a str>>, LoadError> {
    if matches!(family.windows.layers, WindowLayers::All) {
        return Ok(None);
    }
    if matches!(family.windows.layers, WindowLayers::PeriodKey(_)) {
        // A wrong value is rejected even if the kinds are listed.
        json.size(PATTERN, LAYERS)?;
    }
    let kinds = json.texts("layer_types")?;
    if let Some(kinds) = kinds.as_ref().filter(|kinds| kinds.len() != layers) {
        let reason = format!(
            "has {} entries, expected {layers} (num_hidden_layers)",
            kinds.len()
        );
        return Err(json.error("layer_types", reason));
    }
    Ok(kinds)
}

/// Whether each layer has the window, in files without `layer_types`.
fn by_layer(json: &JsonFile, family: &Family, layers: usize) -> Result<Vec<bool>, LoadError> {
    Ok(match family.windows.layers {
        WindowLayers::All => vec![true; layers],
        WindowLayers::Period(period) => all_but_every_nth(period, layers),
        WindowLayers::PeriodKey(period) => {
            let given = json.size(PATTERN, LAYERS)?;
            all_but_every_nth(given.unwrap_or(period), layers)
        }
        WindowLayers::From(first) => {
            let given = json.size("max_window_layers", 0..=usize::MAX)?;
            let first = given.unwrap_or(first);
            (0..layers).map(|layer| layer >= first).collect()
        }
        WindowLayers::WithoutRope => {
            let rotated = rotated(json, family, layers)?.into_iter();
            rotated.map(|rotates| !rotates).collect()
        }
    })
}

/// For each layer, whether it has RoPE. `no_rope_layers` has a 1 for layers with RoPE.
pub(super) fn rotated(
    json: &JsonFile,
    family: &Family,
    layers: usize,
) -> Result<Vec<bool>, LoadError> {
    let Some(usual) = family.no_rope_interval else {
        return Ok(vec![true; layers]);
    };
    const KEY: &str = "no_rope_layers";
    let Some(marks) = json.numbers(KEY, "zeros and ones")? else {
        let interval = json
            .size("no_rope_layer_interval", LAYERS)?
            .unwrap_or(usual);
        return Ok(all_but_every_nth(interval, layers));
    };
    if marks.len() < layers {
        let reason = format!(
            "has {} entries, expected at least {layers} (num_hidden_layers)",
            marks.len()
        );
        return Err(json.error(KEY, reason));
    }
    match marks.iter().find(|mark| **mark > 1) {
        Some(other) => Err(json.error(KEY, format!("has {other}, expected zeros and ones"))),
        None => Ok(marks.iter().take(layers).map(|mark| *mark == 1).collect()),
    }
}

pub(crate) fn all_but_every_nth(interval: usize, layers: usize) -> Vec<bool> {
    let numbers = 1..=layers;
    numbers
        .map(|number| !number.is_multiple_of(interval))
        .collect()
}

fn layer_window(
    json: &JsonFile,
    kind: &str,
    window: Option<usize>,
) -> Result<Option<usize>, LoadError> {
    match (kind, window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => {
            let reason = "names \"sliding_attention\", but sliding_window is null or use_sliding_window is false";
            Err(json.error("layer_types", reason))
        }
        (other, _) => {
            let reason =
                format!("names {other:?}, supported: \"full_attention\" and \"sliding_attention\"");
            Err(json.error("layer_types", reason))
        }
    }
}
