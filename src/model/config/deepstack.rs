//! DeepStack, arXiv 2406.04334: further vectors of an image's positions, which are added to the outputs of the first
//! layers of the text model.

use super::limits::LAYERS;
use crate::family::Family;
use crate::gguf::keys::Keys;
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

/// The layers of the vision tower whose outputs become such vectors.
pub(crate) const INDEXES: &str = "deepstack_visual_indexes";
/// Qwen3-VL's layers, if its `vision_config` does not name them.
pub(crate) const USUAL_INDEXES: [usize; 3] = [8, 16, 24];

/// The number of further vectors of each position, one for each layer that the file names; 0 without a tower.
pub(super) fn from_json(
    json: &JsonFile,
    family: &Family,
    n_layers: usize,
) -> Result<usize, LoadError> {
    if !family.deepstack {
        return Ok(0);
    }
    let Some(vision) = json.object("vision_config")? else {
        return Ok(0);
    };
    let named = vision.numbers(INDEXES, "layers")?;
    let n_sets = named.map_or(USUAL_INDEXES.len(), |layers| layers.len());
    match check(n_sets, n_layers) {
        Ok(()) => Ok(n_sets),
        Err(reason) => Err(vision.error(INDEXES, format!("names {n_sets} layers, {reason}"))),
    }
}

/// As [`from_json`], read from `n_deepstack_layers`.
pub(crate) fn from_gguf(
    keys: &Keys<'_>,
    family: &Family,
    n_layers: usize,
) -> Result<usize, LoadError> {
    const KEY: &str = "n_deepstack_layers";
    if !family.deepstack {
        return Ok(0);
    }
    let n_sets = keys.size(KEY, 0..=*LAYERS.end())?.unwrap_or(0);
    match check(n_sets, n_layers) {
        Ok(()) => Ok(n_sets),
        Err(reason) => Err(keys.error(KEY, format!("is {n_sets}, {reason}"))),
    }
}

/// The last layer computes only the tokens whose logits are read, so nothing is added after it.
fn check(n_sets: usize, n_layers: usize) -> Result<(), String> {
    if n_sets < n_layers {
        return Ok(());
    }
    Err(format!(
        "expected fewer than the {n_layers} layers of the text model: each adds to the output of one that is not the \
         last"
    ))
}
