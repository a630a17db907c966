//! Reads sizes and options whose key, derivation or default depends on the family.

use super::limits::{
    HEAD_DIM, HEADS, INTERMEDIATE, check_head_dim, check_kv_heads, default_head_dim,
};
use crate::family::{Family, MlpWidth};
use crate::json_file::JsonFile;
use crate::rope::{refuse_partial, rotary_part};
use souffleur_base::error::LoadError;

/// The MLP width, by the family's rule for a missing key.
pub(super) fn intermediate_size(json: &JsonFile, family: &Family) -> Result<usize, LoadError> {
    const KEY: &str = "intermediate_size";
    match family.intermediate {
        MlpWidth::Required => json.required_size(KEY, INTERMEDIATE),
        MlpWidth::Default(width) => Ok(json.size(KEY, INTERMEDIATE)?.unwrap_or(width)),
        MlpWidth::Read(read) => read(json),
    }
}

/// Rotated elements of a head: all, or the configured fraction, rounded down.
pub(super) fn rotary_dim(
    json: &JsonFile,
    family: &Family,
    head_dim: usize,
) -> Result<usize, LoadError> {
    let Some(usual) = family.partial_rotary else {
        return refuse_partial(json).map(|()| head_dim);
    };
    let part = rotary_part(json)?.unwrap_or(usual);
    let dim = (head_dim as f64 * part) as usize;
    if dim.is_multiple_of(2) {
        Ok(dim)
    } else {
        let reason = format!(
            "is {part}, which rotates {dim} of the {head_dim} elements of a head, expected an even number of them"
        );
        Err(json.error("partial_rotary_factor", reason))
    }
}

pub(super) fn key_value_heads(
    json: &JsonFile,
    family: &Family,
    heads: usize,
) -> Result<usize, LoadError> {
    const KEY: &str = "num_key_value_heads";
    let default = family.defaults.kv_heads.filter(|_| !json.has(KEY));
    let kv_heads = json.size(KEY, HEADS)?.or(default).unwrap_or(heads);
    check_kv_heads(kv_heads, ("num_attention_heads", heads))
        .map_err(|reason| json.error(KEY, reason))?;
    Ok(kv_heads)
}

pub(super) fn head_dim(
    json: &JsonFile,
    family: &Family,
    hidden: usize,
    heads: usize,
) -> Result<usize, LoadError> {
    const KEY: &str = "head_dim";
    let default = family.defaults.head_dim.filter(|_| !json.has(KEY));
    let head_dim = match json.size(KEY, HEAD_DIM)?.or(default) {
        Some(head_dim) => head_dim,
        None => default_head_dim(hidden, ("num_attention_heads", heads))
            .map_err(|reason| json.error("hidden_size", format!("{reason}: set head_dim")))?,
    };
    check_head_dim(head_dim).map_err(|reason| json.error(KEY, reason))?;
    Ok(head_dim)
}
