//! The memory that each layer keeps of a sequence: the pages and the tree never ask what a page holds.
//!
//! Sizes follow from a [`KvLayout`], layer by layer: those of the pools, the memory plan, the simulation's traffic.

use std::fmt;

/// The element type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
}

impl KvDtype {
    /// Size of an element, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
        }
    }
}

/// The values that belong to the keys of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Values {
    /// `dim` elements beside the key.
    Own {
        /// Elements of a value.
        dim: usize,
    },
    /// The first `dim` elements of the key itself: latent attention stores one vector for both.
    InKeys {
        /// Elements of a value, at most those of a key.
        dim: usize,
    },
}

impl Values {
    /// Elements of a value.
    pub fn dim(self) -> usize {
        match self {
            Self::Own { dim } | Self::InKeys { dim } => dim,
        }
    }

    /// Elements that are stored beside the key.
    pub fn stored_dim(self) -> usize {
        match self {
            Self::Own { dim } => dim,
            Self::InKeys { .. } => 0,
        }
    }
}

/// Keys and values of every token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagedKv {
    /// Key heads.
    pub heads: usize,
    /// Elements of a head's key.
    pub key_dim: usize,
    /// A head's values.
    pub values: Values,
    /// Element type of both.
    pub dtype: KvDtype,
}

impl PagedKv {
    /// Elements of a token.
    pub fn elements_per_token(&self) -> usize {
        self.buffers().map(|buffer| buffer.elements_per_token).sum()
    }

    /// Bytes of a token.
    pub fn bytes_per_token(&self) -> u64 {
        self.buffers().map(|buffer| buffer.bytes_per_token()).sum()
    }

    /// The buffers of a layer, in the order in which a token's parts are written.
    pub fn buffers(&self) -> impl Iterator<Item = KvBuffer> + use<> {
        let Self { heads, dtype, .. } = *self;
        let parts = [("k", self.key_dim), ("v", self.values.stored_dim())];
        let stored = parts.into_iter().filter(|(_, dim)| *dim > 0);
        stored.map(move |(name, dim)| KvBuffer {
            name,
            elements_per_token: heads * dim,
            element_bytes: dtype.bytes(),
        })
    }
}

impl fmt::Display for PagedKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, key_dim, .. } = self;
        let plural = if *heads == 1 { "" } else { "s" };
        write!(f, "{heads} head{plural}, keys of {key_dim}, ")?;
        match self.values {
            Values::Own { dim } => write!(f, "values of {dim}")?,
            Values::InKeys { dim } => write!(f, "their first {dim} the values")?,
        }
        write!(f, ", {}", self.dtype.name())
    }
}

/// The memory that a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKv {
    /// Keys and values of every token, in pages.
    Pages(PagedKv),
    /// A state of fixed size for each sequence, however long that is.
    State {
        /// Size of a sequence's state.
        bytes: u64,
    },
    /// Nothing of its own: it reads the keys and values of the layer of this number.
    Shared(usize),
}

impl LayerKv {
    /// The part of it in pages.
    pub fn pages(&self) -> Option<&PagedKv> {
        match self {
            Self::Pages(pages) => Some(pages),
            Self::State { .. } | Self::Shared(_) => None,
        }
    }

    /// Bytes that one token takes.
    pub fn bytes_per_token(&self) -> u64 {
        self.pages().map_or(0, PagedKv::bytes_per_token)
    }

    /// Bytes that one sequence takes, whatever its length.
    pub fn state_bytes(&self) -> u64 {
        match self {
            Self::Pages(_) | Self::Shared(_) => 0,
            Self::State { bytes } => *bytes,
        }
    }
}

impl fmt::Display for LayerKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(pages) => pages.fmt(f),
            Self::State { bytes } => write!(f, "a state of {bytes} bytes a sequence"),
            Self::Shared(layer) => write!(f, "nothing, reads layer {layer}"),
        }
    }
}

/// One buffer of a layer's pages, as long as the pool has slots: a layout decides the width of a slot, never where a
/// token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBuffer {
    /// Its content: `k` or `v`.
    pub name: &'static str,
    /// Elements that one token takes.
    pub elements_per_token: usize,
    /// Size of an element, in bytes.
    pub element_bytes: usize,
}

impl KvBuffer {
    /// Bytes that one token takes.
    pub fn bytes_per_token(&self) -> u64 {
        self.elements_per_token as u64 * self.element_bytes as u64
    }
}

/// The memory that all layers keep.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// Bytes that one token takes in all layers (the seeds' cell size).
    pub fn bytes_per_token(&self) -> u64 {
        self.layers.iter().map(LayerKv::bytes_per_token).sum()
    }

    /// Bytes that one sequence takes in all layers, whatever its length.
    pub fn state_bytes(&self) -> u64 {
        self.layers.iter().map(LayerKv::state_bytes).sum()
    }

    /// How many layers keep what, in the order in which each kind comes first.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(heads: usize, key_dim: usize, values: Values) -> PagedKv {
        PagedKv {
            heads,
            key_dim,
            values,
            dtype: KvDtype::BF16,
        }
    }

    /// Qwen3.5-9B: three layers of gated delta net, then one of attention, eight times over.
    fn hybrid() -> KvLayout {
        let state = LayerKv::State {
            bytes: 4 * (32 * 128 * 128 + 3 * 8192),
        };
        let full = LayerKv::Pages(pages(4, 256, Values::Own { dim: 256 }));
        KvLayout::new([state, state, state, full].repeat(8))
    }

    #[test]
    fn sizes_are_those_of_published_models() {
        let own = |dim| Values::Own { dim };
        let latent = pages(1, 576, Values::InKeys { dim: 512 });
        let table = [
            // Llama 3 8B, DeepSeek-V2-Lite, and keys of another width than the values.
            (KvLayout::uniform(32, pages(8, 128, own(128))), 131_072, 0),
            (KvLayout::uniform(27, latent), 31_104, 0),
            (KvLayout::uniform(2, pages(3, 192, own(128))), 3_840, 0),
            (hybrid(), 32_768, (50 << 20) + (1 << 18)),
        ];
        for (layout, bytes_per_token, state_bytes) in table {
            assert_eq!(layout.bytes_per_token(), bytes_per_token, "{layout:?}");
            assert_eq!(layout.state_bytes(), state_bytes, "{layout:?}");
        }
    }

    #[test]
    fn values_in_keys_have_no_buffer() {
        let buffers = |values| -> Vec<(&str, u64)> {
            let buffers = pages(2, 96, values).buffers();
            buffers
                .map(|buffer| (buffer.name, buffer.bytes_per_token()))
                .collect()
        };
        assert_eq!(
            buffers(Values::Own { dim: 64 }),
            [("k", 2 * 96 * 2), ("v", 2 * 64 * 2)]
        );
        assert_eq!(buffers(Values::InKeys { dim: 64 }), [("k", 2 * 96 * 2)]);
    }

    #[test]
    fn kinds_of_layers_are_counted_and_described() {
        let lines = hybrid().kinds();
        let lines: Vec<String> = lines
            .iter()
            .map(|(count, kind)| format!("{count}: {kind}"))
            .collect();
        assert_eq!(
            lines,
            [
                "24: a state of 2195456 bytes a sequence",
                "8: 4 heads, keys of 256, values of 256, bfloat16"
            ]
        );
        let latent = pages(1, 576, Values::InKeys { dim: 512 });
        assert_eq!(
            latent.to_string(),
            "1 head, keys of 576, their first 512 the values, bfloat16"
        );
    }
}
