//! The heads of Gemma 4's full-attention layers, which files state once for all layers or layer by layer.

use super::limits::{HEAD_DIM, HEADS, check_head_dim, check_kv_heads};
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

const PER_LAYER: &str = "per_layer_config";
const DIM: &str = "head_dim";
const KV: &str = "num_key_value_heads";
const DEFAULT_DIM: usize = 512;

/// The heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerHeads {
    pub queries: usize,
    pub kv: usize,
    /// Elements of a head.
    pub dim: usize,
}

/// Reads `per_layer_config`, as transformers 5.23 writes it, or the older keys. `usual` are the heads of window layers.
///
/// # Errors
/// [`LoadError::Format`], also if layers of one kind differ, or by more than their heads.
pub(super) fn read(
    json: &JsonFile,
    windows: &[Option<usize>],
    usual: LayerHeads,
) -> Result<LayerHeads, LoadError> {
    match json.object(PER_LAYER)? {
        Some(layers) => of_layers((json, &layers), windows, usual),
        None => of_keys(json, usual),
    }
}

fn of_keys(json: &JsonFile, usual: LayerHeads) -> Result<LayerHeads, LoadError> {
    const GLOBAL_DIM: &str = "global_head_dim";
    const GLOBAL_KV: &str = "num_global_key_value_heads";
    let dim = json.size(GLOBAL_DIM, HEAD_DIM)?.unwrap_or(DEFAULT_DIM);
    check_head_dim(dim).map_err(|reason| json.error(GLOBAL_DIM, reason))?;
    let keys_are_values = json.flag("attention_k_eq_v")?.unwrap_or(false);
    let given = json.size(GLOBAL_KV, HEADS)?.filter(|_| keys_are_values);
    let kv = given.unwrap_or(usual.kv);
    check_kv_heads(kv, ("num_attention_heads", usual.queries))
        .map_err(|reason| json.error(GLOBAL_KV, reason))?;
    Ok(LayerHeads { kv, dim, ..usual })
}

/// Layers that the file leaves out have the heads of the whole model.
fn of_layers(
    (json, layers): (&JsonFile, &JsonFile),
    windows: &[Option<usize>],
    usual: LayerHeads,
) -> Result<LayerHeads, LoadError> {
    check_numbers(layers, windows.len())?;
    let mut full = None;
    for (number, window) in windows.iter().enumerate() {
        let key = number.to_string();
        let heads = match layers.object(&key)? {
            Some(layer) => of_layer(json, &layer, usual)?,
            None => usual,
        };
        let (kind, expected) = match window {
            Some(_) => ("a window, as the whole model", usual),
            None => (
                "full attention, as the first such layer",
                *full.get_or_insert(heads),
            ),
        };
        if heads != expected {
            let reason = format!(
                "has {} KV heads of {} elements, expected {} of {}: it has {kind}",
                heads.kv, heads.dim, expected.kv, expected.dim
            );
            return Err(layers.error(&key, reason));
        }
    }
    Ok(full.unwrap_or(usual))
}

fn check_numbers(layers: &JsonFile, n_layers: usize) -> Result<(), LoadError> {
    let is_layer = |key: &str| {
        let number = key.parse::<usize>().ok();
        number.is_some_and(|number| number < n_layers && number.to_string() == key)
    };
    match layers.entries().keys().find(|key| !is_layer(key)) {
        None => Ok(()),
        Some(key) => {
            let reason = format!("is unknown, expected a layer from 0 to {}", n_layers - 1);
            Err(layers.error(key, reason))
        }
    }
}

fn of_layer(json: &JsonFile, layer: &JsonFile, usual: LayerHeads) -> Result<LayerHeads, LoadError> {
    let differs = |key: &str| ![DIM, KV].contains(&key) && layer.value(key) != json.value(key);
    if let Some(key) = layer.entries().keys().find(|key| differs(key)) {
        let reason = "differs from the whole model's, supported of single layers: head_dim and num_key_value_heads";
        return Err(layer.error(key, reason));
    }
    let dim = layer.size(DIM, HEAD_DIM)?.unwrap_or(usual.dim);
    check_head_dim(dim).map_err(|reason| layer.error(DIM, reason))?;
    let kv = layer.size(KV, HEADS)?.unwrap_or(usual.kv);
    check_kv_heads(kv, ("num_attention_heads", usual.queries))
        .map_err(|reason| layer.error(KV, reason))?;
    Ok(LayerHeads { kv, dim, ..usual })
}
