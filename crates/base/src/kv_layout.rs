//! The KV layout: the memory that each layer keeps per token or sequence.
//!
//! Pool sizes, the memory plan and the simulated memory traffic are computed from a [`KvLayout`]. All other parts (page
//! tables, prefix tree, steps, metrics, message log) count tokens, pages and slots.

mod pages;
#[cfg(test)]
mod tests;

use std::fmt;

pub use self::pages::{KvBuffer, KvDtype, PagedKv, SCALE_BYTES, SCALE_GROUP, Values};

/// The per-head parts of a state. They are contiguous at its start; the rest of the state is not split by head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateHeads {
    /// 0 if no part is per head.
    pub count: usize,
    /// Size of each head's part.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKv {
    /// Keys and values of every token, in pages.
    Pages(PagedKv),
    /// Sliding window: keys and values of the last tokens, in window pages.
    Window {
        pages: PagedKv,
        /// Window size, including the query's own token.
        tokens: usize,
    },
    /// A state of fixed size for each sequence.
    State { bytes: u64, heads: StateHeads },
    /// No memory: the layer reads the keys and values of the layer with this index.
    Shared(usize),
}

impl LayerKv {
    pub fn pages(&self) -> Option<&PagedKv> {
        match self {
            Self::Pages(pages) | Self::Window { pages, .. } => Some(pages),
            Self::State { .. } | Self::Shared(_) => None,
        }
    }

    /// Bytes that a token occupies until its sequence ends: 0 for window pages.
    pub fn bytes_per_token(&self) -> u64 {
        match self {
            Self::Pages(pages) => pages.bytes_per_token(),
            Self::Window { .. } | Self::State { .. } | Self::Shared(_) => 0,
        }
    }

    pub fn window_bytes_per_token(&self) -> u64 {
        match self {
            Self::Window { pages, .. } => pages.bytes_per_token(),
            Self::Pages(_) | Self::State { .. } | Self::Shared(_) => 0,
        }
    }

    pub fn state_bytes(&self) -> u64 {
        match self {
            Self::Pages(_) | Self::Window { .. } | Self::Shared(_) => 0,
            Self::State { bytes, .. } => *bytes,
        }
    }
}

impl fmt::Display for LayerKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(pages) => pages.fmt(f),
            Self::Window { pages, tokens } => {
                write!(f, "{pages}, sliding window of {tokens} tokens")
            }
            Self::State { bytes, .. } => write!(f, "a state of {bytes} bytes per sequence"),
            Self::Shared(layer) => write!(f, "no separate K/V, sharing that of layer {layer}"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    layers: Vec<LayerKv>,
}

impl KvLayout {
    pub fn new(layers: Vec<LayerKv>) -> Self {
        Self { layers }
    }

    /// The same pages for all layers, as in multi-head and grouped-query attention.
    pub fn uniform(n_layers: usize, pages: PagedKv) -> Self {
        Self::new(vec![LayerKv::Pages(pages); n_layers])
    }

    pub fn layers(&self) -> &[LayerKv] {
        &self.layers
    }

    /// The pages that a layer reads: its own, or a shared layer's.
    pub fn read_by(&self, layer: usize) -> Option<&PagedKv> {
        match &self.layers[layer] {
            LayerKv::Shared(source) => self.layers[*source].pages(),
            own => own.pages(),
        }
    }

    /// Adds label buffers for sparse attention; `labels(layer)` elements of each head's key are copied as labels.
    pub fn with_labels(mut self, labels: impl Fn(usize) -> usize) -> Self {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if let LayerKv::Pages(pages) = layer {
                pages.labels = labels(index);
            }
        }
        self
    }

    /// Uses window pages for layers with a window. `None` if that saves nothing or is unsupported: no layer has a
    /// window, windows differ, or other layers keep states.
    pub fn windowed(&self, windows: &[Option<usize>]) -> Option<Self> {
        let mut given = windows.iter().flatten();
        let window = *given.next()?;
        if given.any(|other| *other != window) || self.state_bytes() > 0 {
            return None;
        }
        let layers = self.layers.iter().zip(windows);
        let layers = layers.map(|(layer, window)| match (*layer, *window) {
            (LayerKv::Pages(pages), Some(tokens)) => LayerKv::Window { pages, tokens },
            (layer, _) => layer,
        });
        Some(Self::new(layers.collect()))
    }

    /// The window of the layers with window pages.
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().find_map(|layer| match layer {
            LayerKv::Window { tokens, .. } => Some(*tokens),
            LayerKv::Pages(_) | LayerKv::State { .. } | LayerKv::Shared(_) => None,
        })
    }

    pub fn window_bytes_per_token(&self) -> u64 {
        let layers = self.layers.iter();
        layers.map(LayerKv::window_bytes_per_token).sum()
    }

    /// Bytes of a token in all layers (SGLang's cell size), without window pages.
    pub fn bytes_per_token(&self) -> u64 {
        self.layers.iter().map(LayerKv::bytes_per_token).sum()
    }

    pub fn state_bytes(&self) -> u64 {
        self.layers.iter().map(LayerKv::state_bytes).sum()
    }

    /// Byte lengths of all layers' buffers, in order, for a block of `tokens` tokens. States are not included.
    ///
    /// # Errors
    /// If a layer has window pages, which the KV store does not support.
    pub fn block_planes(&self, tokens: usize) -> Result<Vec<usize>, String> {
        let mut planes = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            match layer {
                LayerKv::Pages(pages) => {
                    let bytes = pages.buffers().map(|buffer| buffer.bytes_per_token());
                    planes.extend(bytes.map(|bytes| bytes as usize * tokens));
                }
                LayerKv::Shared(_) | LayerKv::State { .. } => {}
                LayerKv::Window { tokens, .. } => {
                    return Err(format!(
                        "the KV store does not support the sliding window of layer {index} ({tokens} tokens): remove \
                         kv_disk_path"
                    ));
                }
            }
        }
        Ok(planes)
    }

    /// Byte length of a sequence's state in each layer; 0 for layers without a state.
    pub fn state_planes(&self) -> Vec<usize> {
        let bytes = self.layers.iter().map(LayerKv::state_bytes);
        bytes.map(|bytes| bytes as usize).collect()
    }

    /// The number of layers of each kind, in order of first occurrence.
    pub fn kinds(&self) -> Vec<(usize, LayerKv)> {
        let mut kinds: Vec<(usize, LayerKv)> = Vec::new();
        for layer in &self.layers {
            match kinds.iter_mut().find(|(_, kind)| kind == layer) {
                Some((count, _)) => *count += 1,
                None => kinds.push((1, *layer)),
            }
        }
        kinds
    }
}
