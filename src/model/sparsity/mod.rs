//! Configuration of double sparsity: which layers have labels (a few channels of each key), and of which channels.

mod channel_type;
mod file;

use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use self::channel_type::ChannelType;
pub use self::file::{ChannelRanks, write};
use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::{KvDtype, KvLayout, PagedKv, Values};
use souffleur_kernels::sparsity::DoubleSparsity;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparsityWish {
    pub file: PathBuf,
    pub ranked_by: ChannelType,
    /// Channels per label; [`default_channels`] if `None`.
    pub channels: Option<usize>,
    /// Tokens that a query head attends to, including the query's token.
    pub tokens: usize,
    /// Context length from which attention is sparse, in tokens.
    pub threshold: usize,
}

/// Default ratio of a key's channels to a label's.
const DEFAULT_RATIO: usize = 4;
/// Smallest default, unless a key has fewer channels: a quarter of a narrow key finds too few important tokens.
const MIN_DEFAULT: usize = 32;

pub fn default_channels(key_dim: usize) -> usize {
    (key_dim / DEFAULT_RATIO).max(MIN_DEFAULT).min(key_dim)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSparsity {
    pub rules: Arc<DoubleSparsity>,
    /// Identifies everything that affects results: the parameters and the file's hash. It is part of the lookup keys of
    /// persistent KV, so the same parameters have the same tag in every version.
    pub tag: Arc<str>,
}

impl ModelSparsity {
    /// The [tag](Self::tag) as a part of a fingerprint: never empty, and no tag is a prefix of another.
    pub fn stable_bytes(&self) -> &[u8] {
        self.tag.as_bytes()
    }

    pub fn label(&self, layout: KvLayout) -> KvLayout {
        layout.with_labels(|layer| self.rules.labels_in(layer))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LayersToLabel<'a> {
    pub layout: &'a KvLayout,
    /// Sliding window of each layer.
    pub windows: &'a [Option<usize>],
    pub n_heads: usize,
}

impl LayersToLabel<'_> {
    /// The KV pages of a layer with labels. Only layers with full attention have labels: window layers read few keys,
    /// recurrent layers none.
    fn labelled(&self, layer: usize) -> Option<&PagedKv> {
        let pages = self.layout.layers()[layer].pages()?;
        self.windows[layer].is_none().then_some(pages)
    }

    /// Elements of a head's label in each layer: `channels`, or [`default_channels`]; 0 for layers without labels.
    ///
    /// # Errors
    /// [`LoadError::Device`] names the unsupported part of the model.
    pub fn labels(&self, channels: Option<usize>) -> Result<Vec<usize>, LoadError> {
        let refuse = |reason: String| {
            Err(LoadError::Device(format!(
                "enable_double_sparsity {reason}"
            )))
        };
        let n_layers = self.layout.layers().len();
        let mut sizes = vec![0; n_layers];
        for (layer, size) in sizes.iter_mut().enumerate() {
            let Some(pages) = self.labelled(layer) else {
                continue;
            };
            if matches!(pages.values, Values::InKeys { .. }) {
                return refuse(format!(
                    "is on, but layer {layer} uses latent attention (MLA), whose single key serves all heads and has \
                     no channels to choose: turn it off for this model"
                ));
            }
            match pages.dtype {
                KvDtype::F32 | KvDtype::F16 | KvDtype::BF16 => {}
                KvDtype::Int8 => {
                    return refuse(
                        "is on, but kv_cache_dtype is int8: double sparsity needs keys that are not quantised: \
                         turn it off, or choose another kv_cache_dtype"
                            .to_owned(),
                    );
                }
            }
            let channels = channels.unwrap_or_else(|| default_channels(pages.key_dim));
            if channels > pages.key_dim {
                return Err(LoadError::Device(format!(
                    "ds_heavy_channel_num is {channels}, but keys of layer {layer} have only {} channels: set it to at most {0}",
                    pages.key_dim
                )));
            }
            *size = channels;
        }
        if sizes.iter().all(|size| *size == 0) {
            refuse(
            "is on, but every layer of this model has a window or a recurrent state, and double sparsity needs full \
             attention: turn it off for this model"
                .to_owned(),
        )
        } else {
            Ok(sizes)
        }
    }
}

impl SparsityWish {
    /// Reads the channel file for a model.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`] naming file, layer, head and channel; [`LoadError::Device`] for a
    /// model that cannot be sparse.
    pub fn read(&self, layers: LayersToLabel<'_>) -> Result<ModelSparsity, LoadError> {
        let sizes = layers.labels(self.channels)?;
        let file = file::read(&self.file)?;
        let n_channels = sizes_text(&sizes);
        let mut channels = Vec::with_capacity(sizes.len());
        for (layer, size) in sizes.into_iter().enumerate() {
            let pages = layers.labelled(layer).filter(|_| size > 0);
            channels.push(match pages {
                None => None,
                Some(pages) => {
                    Some(file.channels(layer, (self.ranked_by, size), pages, layers.n_heads)?)
                }
            });
        }
        let hash: String = Sha256::digest(&file.bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let Self {
            ranked_by,
            tokens,
            threshold,
            ..
        } = self;
        let ranked_by = ranked_by.name();
        Ok(ModelSparsity {
            tag: format!("ds-{ranked_by}-{n_channels}-{tokens}-{threshold}-{hash}").into(),
            rules: Arc::new(DoubleSparsity {
                threshold: *threshold,
                tokens: *tokens,
                layers: channels,
            }),
        })
    }
}

/// The sizes of labels, joined by `+`; equal consecutive sizes are written once.
fn sizes_text(labels: &[usize]) -> String {
    let mut sizes: Vec<usize> = labels.iter().copied().filter(|size| *size > 0).collect();
    sizes.dedup();
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    sizes.join("+")
}

#[cfg(test)]
mod tests;
