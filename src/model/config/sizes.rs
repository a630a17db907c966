//! Sizes that families name, derive or default in their own ways.

use super::architecture::Architecture;
use super::limits::{HEAD_DIM, HEADS, INTERMEDIATE, check_head_dim, check_kv_heads, even_head_dim};
use crate::error::LoadError;
use crate::model::json_file::JsonFile;
use crate::model::rope::{refuse_partial, rotary_part};

/// Only layers without experts have this width, so that models may not say it.
pub(super) fn intermediate_size(
    json: &JsonFile,
    architecture: Architecture,
) -> Result<usize, LoadError> {
    match architecture {
        Architecture::Qwen3Moe => {
            let given = json.size("intermediate_size", INTERMEDIATE)?;
            Ok(given.unwrap_or(6144))
        }
        Architecture::Qwen3Next => {
            let given = json.size("intermediate_size", INTERMEDIATE)?;
            Ok(given.unwrap_or(5632))
        }
        Architecture::Qwen35Moe => Ok(json.size("intermediate_size", INTERMEDIATE)?.unwrap_or(0)),
        Architecture::Lfm2 => adjusted_width(json),
        Architecture::Lfm2Moe => {
            let given = json.size("intermediate_size", INTERMEDIATE)?;
            Ok(given.unwrap_or(7168))
        }
        _ => json.required_size("intermediate_size", INTERMEDIATE),
    }
}

/// LFM2 gives the width of an MLP without gates: two thirds of it, stretched and rounded up.
fn adjusted_width(json: &JsonFile) -> Result<usize, LoadError> {
    let given = match json.size("block_ff_dim", INTERMEDIATE)? {
        None => json.required_size("intermediate_size", INTERMEDIATE)?,
        Some(width) => width,
    };
    if !json.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(given);
    }
    let thirds = 2 * given / 3;
    let key = "block_ffn_dim_multiplier";
    let width = if json.has(key) && json.value(key).is_none() {
        thirds
    } else {
        let factor = json.number(key, 0.0..=1024.0)?.unwrap_or(1.0);
        let multiple = json.size("block_multiple_of", INTERMEDIATE)?.unwrap_or(256);
        ((factor * thirds as f64) as usize).next_multiple_of(multiple)
    };
    if INTERMEDIATE.contains(&width) {
        Ok(width)
    } else {
        let reason = format!(
            "makes an MLP of width {width}, expected 1 to {}",
            INTERMEDIATE.end()
        );
        Err(json.error("intermediate_size", reason))
    }
}

pub(super) fn eps_key(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Lfm2 | Architecture::Lfm2Moe => "norm_eps",
        _ => "rms_norm_eps",
    }
}

pub(super) fn ties_embeddings(
    json: &JsonFile,
    architecture: Architecture,
) -> Result<bool, LoadError> {
    let is_lfm2 = matches!(architecture, Architecture::Lfm2 | Architecture::Lfm2Moe);
    if let Some(ties) = json.flag("tie_embedding")?.filter(|_| is_lfm2) {
        return Ok(ties);
    }
    let by_default = is_lfm2 || architecture.is_gemma() || architecture == Architecture::SmolLm3;
    Ok(json.flag("tie_word_embeddings")?.unwrap_or(by_default))
}

/// The whole head, or in the families of Qwen3.5 and in Phi-3 the part that is configured, rounded down.
pub(super) fn rotary_dim(
    json: &JsonFile,
    architecture: Architecture,
    head_dim: usize,
) -> Result<usize, LoadError> {
    match architecture {
        Architecture::Qwen35
        | Architecture::Qwen35Moe
        | Architecture::Qwen3Next
        | Architecture::Phi3 => {
            let absent = match architecture {
                Architecture::Phi3 => 1.0,
                _ => 0.25,
            };
            let part = rotary_part(json)?.unwrap_or(absent);
            let dim = (head_dim as f64 * part) as usize;
            if dim.is_multiple_of(2) {
                Ok(dim)
            } else {
                let reason = format!(
                    "is {part}: {dim} elements of a head of {head_dim}, expected an even number"
                );
                Err(json.error("partial_rotary_factor", reason))
            }
        }
        _ => refuse_partial(json).map(|()| head_dim),
    }
}

pub(super) fn key_value_heads(
    json: &JsonFile,
    architecture: Architecture,
    heads: usize,
) -> Result<usize, LoadError> {
    let absent = match architecture {
        Architecture::Mistral
        | Architecture::Mixtral
        | Architecture::GptOss
        | Architecture::Ministral3
            if !json.has("num_key_value_heads") =>
        {
            8
        }
        Architecture::Qwen2 | Architecture::Qwen3 if !json.has("num_key_value_heads") => 32,
        _ if architecture.is_gemma() && !json.has("num_key_value_heads") => 4,
        Architecture::Qwen3Moe | Architecture::Qwen35 | Architecture::SmolLm3
            if !json.has("num_key_value_heads") =>
        {
            4
        }
        Architecture::Qwen35Moe | Architecture::Qwen3Next if !json.has("num_key_value_heads") => 2,
        Architecture::Lfm2 | Architecture::Lfm2Moe if !json.has("num_key_value_heads") => 8,
        _ => heads,
    };
    let kv_heads = json.size("num_key_value_heads", HEADS)?.unwrap_or(absent);
    check_kv_heads(kv_heads, ("num_attention_heads", heads))
        .map_err(|reason| json.error("num_key_value_heads", reason))?;
    Ok(kv_heads)
}

pub(super) fn head_dim(
    json: &JsonFile,
    architecture: Architecture,
    hidden: usize,
    heads: usize,
) -> Result<usize, LoadError> {
    let head_dim = match json.size("head_dim", HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None if has_128_wide_heads(architecture) && !json.has("head_dim") => 128,
        None if has_wide_heads(architecture) && !json.has("head_dim") => 256,
        None if architecture == Architecture::GptOss && !json.has("head_dim") => 64,
        None => even_head_dim(hidden, ("num_attention_heads", heads))
            .map_err(|reason| json.error("hidden_size", format!("{reason}: set head_dim")))?,
    };
    check_head_dim(head_dim).map_err(|reason| json.error("head_dim", reason))?;
    Ok(head_dim)
}

fn has_128_wide_heads(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Qwen3 | Architecture::Ministral3)
}

fn has_wide_heads(architecture: Architecture) -> bool {
    let wide = [
        Architecture::Qwen35,
        Architecture::Qwen35Moe,
        Architecture::Qwen3Next,
        Architecture::Gemma2,
        Architecture::Gemma3,
        Architecture::Gemma4,
    ];
    wide.contains(&architecture)
}
