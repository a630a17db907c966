//! The sliding windows of a model's layers, and the layers with RoPE.

use super::architecture::Architecture;
use super::limits::{CONTEXT, LAYERS};
use crate::error::LoadError;
use crate::model::json_file::JsonFile;

/// Reads for each layer how many tokens a query sees, itself included; `None` for all of them.
pub(super) fn read(
    json: &JsonFile,
    architecture: Architecture,
    layers: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    let mut windows = as_given(json, architecture, layers)?;
    if let Some(last) = windows
        .last_mut()
        .filter(|_| architecture == Architecture::Gemma4)
    {
        // Whatever the file says of it.
        *last = None;
    }
    Ok(windows)
}

fn as_given(
    json: &JsonFile,
    architecture: Architecture,
    layers: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    let slides = match architecture {
        Architecture::Llama
        | Architecture::Qwen35
        | Architecture::Qwen35Moe
        | Architecture::Qwen3Next
        | Architecture::Lfm2
        | Architecture::Lfm2Moe
        | Architecture::DeepseekV2
        | Architecture::DeepseekV3
        | Architecture::Glm4MoeLite
        | Architecture::Granite => false,
        Architecture::Mistral | Architecture::Mixtral | Architecture::GptOss => true,
        Architecture::Gemma2 | Architecture::Gemma3 | Architecture::Gemma4 => true,
        Architecture::Phi3 | Architecture::Ministral3 => true,
        Architecture::Qwen2
        | Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::SmolLm3 => json.flag("use_sliding_window")?.unwrap_or(false),
    };
    let given = json.size("sliding_window", CONTEXT)?;
    let window = match given {
        _ if !slides => None,
        None if has_none_by_default(architecture) => None,
        None if !json.has("sliding_window") => match architecture {
            Architecture::GptOss => Some(128),
            Architecture::Gemma4 => Some(512),
            _ => Some(4096),
        },
        given => given,
    };
    if window.is_none() && architecture.is_gemma() {
        return Err(json.error("sliding_window", "is null, expected a number of tokens"));
    }
    let period = period(json, architecture)?;
    let is_smollm3 = architecture == Architecture::SmolLm3;
    let says_kinds = matches!(architecture, Architecture::Qwen2 | Architecture::Qwen3);
    if period.is_none() && !is_smollm3 && !says_kinds {
        return Ok(vec![window; layers]);
    }
    let Some(kinds) = json.texts("layer_types")? else {
        if is_smollm3 {
            // Where nothing rotates.
            let rotated = rotated(json, architecture, layers)?.into_iter();
            return Ok(rotated.map(|rotates| window.filter(|_| !rotates)).collect());
        }
        if let Some(period) = period {
            let slides = |layer: usize| !(layer + 1).is_multiple_of(period);
            return Ok((0..layers)
                .map(|layer| window.filter(|_| slides(layer)))
                .collect());
        }
        let first = json
            .size("max_window_layers", 0..=usize::MAX)?
            .unwrap_or(28);
        return Ok((0..layers)
            .map(|layer| window.filter(|_| layer >= first))
            .collect());
    };
    if kinds.len() != layers {
        let reason = format!(
            "has {} entries, expected num_hidden_layers, {layers}",
            kinds.len()
        );
        return Err(json.error("layer_types", reason));
    }
    kinds
        .into_iter()
        .map(|kind| layer_window(json, kind, window))
        .collect()
}

/// The layers of a period, all of which have windows but for the last, in families where nothing else says it.
fn period(json: &JsonFile, architecture: Architecture) -> Result<Option<usize>, LoadError> {
    Ok(match architecture {
        Architecture::GptOss | Architecture::Gemma2 => Some(2),
        Architecture::Gemma3 => {
            let given = json.size("sliding_window_pattern", LAYERS)?;
            Some(given.unwrap_or(6))
        }
        Architecture::Gemma4 => Some(6),
        _ => None,
    })
}

fn has_none_by_default(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Mixtral
            | Architecture::SmolLm3
            | Architecture::Phi3
            | Architecture::Ministral3
    )
}

/// Reads for each layer whether positions rotate its queries and keys. `no_rope_layers` has a 1 where they do.
pub(super) fn rotated(
    json: &JsonFile,
    architecture: Architecture,
    layers: usize,
) -> Result<Vec<bool>, LoadError> {
    if architecture != Architecture::SmolLm3 {
        return Ok(vec![true; layers]);
    }
    const KEY: &str = "no_rope_layers";
    let Some(marks) = json.numbers(KEY, "zeros and ones")? else {
        let interval = json.size("no_rope_layer_interval", LAYERS)?.unwrap_or(4);
        return Ok(every_but(interval, layers));
    };
    if marks.len() < layers {
        let reason = format!(
            "has {} entries, expected at least num_hidden_layers, {layers}",
            marks.len()
        );
        return Err(json.error(KEY, reason));
    }
    match marks.iter().find(|mark| **mark > 1) {
        Some(other) => Err(json.error(KEY, format!("holds {other}, expected zeros and ones"))),
        None => Ok(marks.iter().take(layers).map(|mark| *mark == 1).collect()),
    }
}

/// All layers but the last of each `interval`.
pub(crate) fn every_but(interval: usize, layers: usize) -> Vec<bool> {
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
            let reason =
                "names \"sliding_attention\" but use_sliding_window or sliding_window is off";
            Err(json.error("layer_types", reason))
        }
        (other, _) => {
            let reason = format!(
                "names {other:?}, supported are \"full_attention\" and \"sliding_attention\""
            );
            Err(json.error("layer_types", reason))
        }
    }
}
