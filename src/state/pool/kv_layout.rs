//! The memory that each layer keeps of a sequence: the pages and the tree never ask what a page holds.
//!
//! Sizes follow from a [`KvLayout`], layer by layer: those of the pools, the memory plan, the simulation's traffic.

use std::fmt;

/// Elements of a key or a value that share a scale, where they are quantised; the last group of a head may have less.
pub const SCALE_GROUP: usize = 64;
/// Size of a scale, a 16-bit brain float, in bytes.
pub const SCALE_BYTES: usize = 2;

/// The element type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
    /// Signed bytes, with a scale for each [`SCALE_GROUP`] of them.
    Int8,
}

impl KvDtype {
    /// Size of an element, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Scales of a key or a value of `dim` elements.
    pub fn scales(self, dim: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 0,
            Self::Int8 => dim.div_ceil(SCALE_GROUP),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::Int8 => "int8",
        }
    }

    /// Finds the type of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::BF16, Self::Int8]
            .into_iter()
            .find(|dtype| dtype.name() == name)
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
    /// Elements of a head's key that are stored once more, as labels by which keys are chosen; 0 where none are.
    pub labels: usize,
    /// Element type of all.
    pub dtype: KvDtype,
}

impl PagedKv {
    /// Elements of a token's keys and values, without labels and scales.
    pub fn elements_per_token(&self) -> usize {
        self.heads * (self.key_dim + self.values.stored_dim())
    }

    /// Scales of a token.
    pub fn scales_per_token(&self) -> usize {
        let dims = [self.key_dim, self.values.stored_dim()];
        self.heads * dims.map(|dim| self.dtype.scales(dim)).iter().sum::<usize>()
    }

    /// Bytes of a token.
    pub fn bytes_per_token(&self) -> u64 {
        self.buffers().map(|buffer| buffer.bytes_per_token()).sum()
    }

    /// The buffers of a layer, in the order in which a token's parts are written.
    pub fn buffers(&self) -> impl Iterator<Item = KvBuffer> + use<> {
        let (heads, bytes) = (self.heads, self.dtype.bytes());
        let parts = [
            ("k", heads * self.key_dim, bytes),
            ("v", heads * self.values.stored_dim(), bytes),
            ("label", heads * self.labels, bytes),
            ("scale", self.scales_per_token(), SCALE_BYTES),
        ];
        let stored = parts.into_iter().filter(|(_, elements, _)| *elements > 0);
        stored.map(|(name, elements_per_token, element_bytes)| KvBuffer {
            name,
            elements_per_token,
            element_bytes,
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
        if self.labels > 0 {
            write!(f, ", labels of {}", self.labels)?;
        }
        write!(f, ", {}", self.dtype.name())?;
        match self.scales_per_token() {
            0 => Ok(()),
            scales => write!(f, " with {scales} scales of bfloat16 a token"),
        }
    }
}

/// The parts of a state that belong to heads: they come first, one after the other. What follows is nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateHeads {
    /// How many there are; 0 where nothing belongs to a head.
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
        /// Of each of those tokens.
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
    /// Nothing of its own: it reads the keys and values of the layer of this number.
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

    /// Bytes that one token takes for good: none in window pages.
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
            Self::Window { pages, tokens } => write!(f, "{pages}, of the last {tokens} tokens"),
            Self::State { bytes, .. } => write!(f, "a state of {bytes} bytes a sequence"),
            Self::Shared(layer) => write!(f, "nothing, reads layer {layer}"),
        }
    }
}

/// One buffer of a layer's pages, as long as the pool has slots: a layout decides the width of a slot, never where a
/// token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBuffer {
    /// Its content: `k`, `v`, `label` or `scale`.
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

    /// The same, where some layers also store labels: as many elements of a head's key as `labels` says of a layer.
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

    /// Bytes that one token takes in all layers (the seeds' cell size), window pages aside.
    pub fn bytes_per_token(&self) -> u64 {
        self.layers.iter().map(LayerKv::bytes_per_token).sum()
    }

    /// Bytes that one sequence takes in all layers, whatever its length.
    pub fn state_bytes(&self) -> u64 {
        self.layers.iter().map(LayerKv::state_bytes).sum()
    }

    /// The lengths in bytes of the parts of a block of so many tokens, in their order: the buffers of each layer in turn.
    /// States are no part of it.
    ///
    /// # Errors
    /// The layer that keeps something which is not stored.
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
                        "layer {index} keeps {layer}, and only keys and values of all tokens can be stored"
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
            labels: 0,
            dtype: KvDtype::BF16,
        }
    }

    /// Qwen3.5-9B: three layers of gated delta net, then one of attention, eight times over.
    fn hybrid() -> KvLayout {
        let state = LayerKv::State {
            bytes: 4 * (32 * 128 * 128 + 3 * 8192),
            heads: StateHeads {
                count: 32,
                bytes: 4 * 128 * 128,
            },
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
    fn windows_of_one_size_have_pages_of_their_own() {
        let own = pages(4, 256, Values::Own { dim: 256 });
        let gemma = KvLayout::uniform(34, own);
        // Gemma 3 4B: five layers with a window, then one without.
        let windows: Vec<Option<usize>> = (1..=34)
            .map(|layer| (layer % 6 != 0).then_some(1024))
            .collect();
        let windowed = gemma.windowed(&windows).expect("they have one size");
        assert_eq!((gemma.bytes_per_token(), gemma.window()), (139_264, None));
        assert_eq!(windowed.bytes_per_token(), 20_480);
        assert_eq!(windowed.window_bytes_per_token() * 1024, 116 << 20);
        assert_eq!(windowed.window(), Some(1024));
        assert_eq!(windowed.kinds().len(), 2);
        let mut others = windows;
        others[0] = Some(512);
        assert_eq!(gemma.windowed(&others), None);
        assert_eq!(gemma.windowed(&[None; 34]), None);
        assert_eq!(hybrid().windowed(&[Some(8); 32]), None);
    }

    #[test]
    fn a_block_has_every_buffer_of_its_tokens() {
        let latent = pages(1, 96, Values::InKeys { dim: 64 });
        let own = pages(2, 128, Values::Own { dim: 64 });
        let int8 = PagedKv {
            dtype: KvDtype::Int8,
            ..own
        };
        let layers = [latent, own, int8].map(LayerKv::Pages);
        let layout = KvLayout::new([&layers[..], &[LayerKv::Shared(1)]].concat());
        let planes = layout.block_planes(16).expect("all layers keep pages");
        assert_eq!(
            planes,
            [
                16 * 96 * 2,
                16 * 2 * 128 * 2,
                16 * 2 * 64 * 2,
                16 * 2 * 128,
                16 * 2 * 64,
                16 * 2 * 3 * 2
            ]
        );
        let bytes = layout.bytes_per_token() as usize * 16;
        assert_eq!(planes.iter().sum::<usize>(), bytes);
        let window = KvLayout::new(vec![LayerKv::Window {
            pages: own,
            tokens: 8,
        }]);
        let refusal = window.block_planes(16).expect_err("tokens are missing");
        assert!(refusal.starts_with("layer 0 keeps"), "{refusal}");
        assert_eq!(
            hybrid().state_planes()[..4],
            [2_195_456, 2_195_456, 2_195_456, 0]
        );
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
    fn labels_are_a_third_buffer_of_the_layers_that_have_them() {
        let layout = hybrid().with_labels(|layer| if layer == 7 { 32 } else { 0 });
        let labels = 4 * 32 * 2;
        assert_eq!(layout.bytes_per_token(), 32_768 + labels);
        let buffers = |layer: usize| layout.layers()[layer].pages().map(PagedKv::buffers);
        let names: Vec<&str> = buffers(7).into_iter().flatten().map(|b| b.name).collect();
        assert_eq!(names, ["k", "v", "label"]);
        assert_eq!(buffers(3).into_iter().flatten().count(), 2);
        let described = layout.layers()[7].to_string();
        assert_eq!(
            described,
            "4 heads, keys of 256, values of 256, labels of 32, bfloat16"
        );
    }

    #[test]
    fn quantised_layers_count_their_scales() {
        let int8 = |pages: PagedKv| PagedKv {
            dtype: KvDtype::Int8,
            ..pages
        };
        let own = |dim| Values::Own { dim };
        let table = [
            // 0.516 of bfloat16: a byte an element and two bytes for 64 of them.
            (pages(8, 128, own(128)), 8 * 2 * (128 + 2 * 2)),
            (pages(1, 576, Values::InKeys { dim: 512 }), 576 + 9 * 2),
            (pages(4, 80, own(96)), 4 * (80 + 96 + 4 * 2)),
            (pages(2, 40, own(40)), 2 * 2 * (40 + 2)),
        ];
        for (pages, bytes) in table {
            let pages = int8(pages);
            assert_eq!(pages.bytes_per_token(), bytes, "{pages}");
            let elements = bytes as usize - SCALE_BYTES * pages.scales_per_token();
            assert_eq!(pages.elements_per_token(), elements, "{pages}");
        }
        assert_eq!(
            int8(pages(1, 96, own(64))).to_string(),
            "1 head, keys of 96, values of 64, int8 with 3 scales of bfloat16 a token"
        );
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
