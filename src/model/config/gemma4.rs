//! Configuration specific to Gemma 4: two head sizes, shared KV, per-layer inputs, experts in parallel with the MLP.

use super::full_heads::{self, LayerHeads};
use super::limits::{INTERMEDIATE, LAYERS, VOCAB};
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

const DEFAULT_INPUT_WIDTH: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub struct Gemma4Config {
    /// KV heads of full-attention layers.
    pub full_kv_heads: usize,
    pub full_head_dim: usize,
    /// Whether the key projection of full-attention layers also gives the values.
    pub keys_are_values: bool,
    /// Number of final layers that keep no KV: each reads the KV of the last layer of its kind that keeps it.
    pub n_sharing: usize,
    /// Whether the MLPs of the sharing layers are twice as wide.
    pub double_wide: bool,
    pub inputs: Option<LayerInputs>,
}

/// Per-layer inputs, looked up by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputs {
    pub width: usize,
    /// Rows of the table of per-layer inputs: one for each token id.
    pub vocab_size: usize,
}

impl Gemma4Config {
    /// `usual` are the heads of window layers.
    pub(super) fn from_json(
        json: &JsonFile,
        windows: &[Option<usize>],
        usual: LayerHeads,
    ) -> Result<Self, LoadError> {
        let full = full_heads::read(json, windows, usual)?;
        let n_sharing = json
            .size("num_kv_shared_layers", 0..=*LAYERS.end())?
            .unwrap_or(0);
        let config = Self {
            full_kv_heads: full.kv,
            full_head_dim: full.dim,
            keys_are_values: json.flag("attention_k_eq_v")?.unwrap_or(false),
            n_sharing,
            double_wide: json.flag("use_double_wide_mlp")?.unwrap_or(false),
            inputs: layer_inputs(json)?,
        };
        config
            .check_sharing(windows)
            .map_err(|reason| json.error("num_kv_shared_layers", reason))?;
        Ok(config)
    }

    /// Checks that each sharing layer has a source. The error continues a sentence that begins with the key.
    pub(crate) fn check_sharing(&self, windows: &[Option<usize>]) -> Result<(), String> {
        let layers = windows.len();
        if self.n_sharing >= layers {
            return Err(format!(
                "is {}, expected less than the number of layers, {layers}",
                self.n_sharing
            ));
        }
        let unmatched = (0..layers).find(|layer| self.source(windows, *layer).is_none());
        match unmatched {
            None => Ok(()),
            Some(layer) => Err(format!(
                "is {}, but no earlier layer of the same kind has KV for layer {layer} to share",
                self.n_sharing
            )),
        }
    }

    /// Index of the layer whose KV `layer` reads: `layer`, or the last layer of the same kind that keeps KV.
    pub fn source(&self, windows: &[Option<usize>], layer: usize) -> Option<usize> {
        let n_keeping = windows.len() - self.n_sharing;
        if layer < n_keeping {
            Some(layer)
        } else {
            windows[..n_keeping]
                .iter()
                .rposition(|window| window.is_some() == windows[layer].is_some())
        }
    }
}

fn layer_inputs(json: &JsonFile) -> Result<Option<LayerInputs>, LoadError> {
    let width = json.size("hidden_size_per_layer_input", 0..=*INTERMEDIATE.end())?;
    let vocab_size = json.size("vocab_size_per_layer_input", VOCAB)?;
    Ok(match width.unwrap_or(DEFAULT_INPUT_WIDTH) {
        0 => None,
        width => Some(LayerInputs {
            width,
            vocab_size: vocab_size.unwrap_or(262_144),
        }),
    })
}
