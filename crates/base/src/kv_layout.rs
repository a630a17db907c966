//! The KV layout: the memory that each layer keeps for a sequence. Pages and tree do not depend on it.
//!
//! Sizes follow from a [`KvLayout`], layer by layer: those of the pools, the memory plan, the simulation's traffic.
//!
//! Nothing else knows the widths and types of keys and values: plans, page tables, steps, metrics and the message log
//! count tokens, pages and slots.

mod pages;
#[cfg(test)]
mod tests;

use std::fmt;

pub use self::pages::{KvBuffer, KvDtype, PagedKv, SCALE_BYTES, SCALE_GROUP, Values};

/// The parts of a state that belong to heads: they come first, one after the other. The rest belongs to no head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateHeads {
    /// Number of heads; 0 where nothing belongs to a head.
    pub count: usize,
    /// Size of the part of each.
    pub bytes: u64,
}

/// The memory that a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKv {
    /// Keys and values of every token, in pages.
    Pages(PagedKv),
    /// Keys and values of the last tokens, in window pages.
    Window {
        /// The layout of each of those tokens' keys and values.
        pages: PagedKv,
        /// How many of them a query sees, its own among them.
        tokens: usize,
    },
    /// A state of fixed size for each sequence, however long that is.
    State {
        /// Size of a sequence's state.
        bytes: u64,
        /// The heads whose parts it begins with.
        heads: StateHeads,
    },
    /// Nothing: it reads the keys and values of the layer with this index.
    Shared(usize),
}

impl LayerKv {
    /// The part of it in pages.
    pub fn pages(&self) -> Option<&PagedKv> {
        match self {
            Self::Pages(pages) | Self::Window { pages, .. } => Some(pages),
            Self::State { .. } | Self::Shared(_) => None,
        }
    }

    /// Bytes that one token takes for as long as its sequence runs: none in window pages.
    pub fn bytes_per_token(&self) -> u64 {
        match self {
            Self::Pages(pages) => pages.bytes_per_token(),
            Self::Window { .. } | Self::State { .. } | Self::Shared(_) => 0,
        }
    }

    /// Bytes that one token takes in window pages.
    pub fn window_bytes_per_token(&self) -> u64 {
        match self {
            Self::Window { pages, .. } => pages.bytes_per_token(),
            Self::Pages(_) | Self::State { .. } | Self::Shared(_) => 0,
        }
    }

    /// Bytes that one sequence takes, whatever its length.
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
            Self::Shared(layer) => write!(f, "nothing, reads the K/V of layer {layer}"),
        }
    }
}

/// The memory that all layers keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    layers: Vec<LayerKv>,
}

impl KvLayout {
    /// The memory that each layer keeps, in order.
    pub fn new(layers: Vec<LayerKv>) -> Self {
        Self { layers }
    }

    /// Layers that all keep the same, as in multi-head and grouped-query attention.
    pub fn uniform(n_layers: usize, pages: PagedKv) -> Self {
        Self::new(vec![LayerKv::Pages(pages); n_layers])
    }

    /// The memory that each layer keeps, in order.
    pub fn layers(&self) -> &[LayerKv] {
        &self.layers
    }

    /// The pages that a layer reads: its own, or those of another one.
    pub fn read_by(&self, layer: usize) -> Option<&PagedKv> {
        match &self.layers[layer] {
            LayerKv::Shared(source) => self.layers[*source].pages(),
            own => own.pages(),
        }
    }

    /// The same with labels, whose number of elements of a head's key `labels` gives for each layer.
    pub fn with_labels(mut self, labels: impl Fn(usize) -> usize) -> Self {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if let LayerKv::Pages(pages) = layer {
                pages.labels = labels(index);
            }
        }
        self
    }

    /// The same with window pages for the layers that have a window. `None` where that saves nothing, or is not possible:
    /// no layer has one, they differ, or other layers keep states.
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

    /// How many tokens a query of the layers with windows sees, where those have window pages.
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().find_map(|layer| match layer {
            LayerKv::Window { tokens, .. } => Some(*tokens),
            LayerKv::Pages(_) | LayerKv::State { .. } | LayerKv::Shared(_) => None,
        })
    }

    /// Bytes that one token takes in the window pages of all layers.
    pub fn window_bytes_per_token(&self) -> u64 {
        let layers = self.layers.iter();
        layers.map(LayerKv::window_bytes_per_token).sum()
    }

    /// Bytes that one token takes in all layers (SGLang's cell size), window pages aside.
    pub fn bytes_per_token(&self) -> u64 {
        self.layers.iter().map(LayerKv::bytes_per_token).sum()
    }

    /// Bytes that one sequence takes in all layers, whatever its length.
    pub fn state_bytes(&self) -> u64 {
        self.layers.iter().map(LayerKv::state_bytes).sum()
    }

    /// The lengths in bytes of the parts of a block of `tokens` tokens, in their order: the buffers of each layer in
    /// turn. States are no part of it.
    ///
    /// # Errors
    /// The layer whose memory cannot be stored.
    pub fn block_planes(&self, tokens: usize) -> Result<Vec<usize>, String> {
        let mut planes = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            match layer {
                LayerKv::Pages(pages) => {
                    let bytes = pages.buffers().map(|buffer| buffer.bytes_per_token());
                    planes.extend(bytes.map(|bytes| bytes as usize * tokens));
                }
                LayerKv::Shared(_) | LayerKv::State { .. } => {}
                LayerKv::Window { .. } => {
                    return Err(format!(
                        "layer {index} keeps {layer}, but only keys and values of all tokens can be stored"
                    ));
                }
            }
        }
        Ok(planes)
    }

    /// The lengths in bytes of the states of a sequence, layer by layer: 0 where there is none.
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
