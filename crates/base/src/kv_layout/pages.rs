//! The layout of a layer's paged keys and values: element type, sizes, buffers.

use std::fmt;

/// Elements of a quantised key or value that share a scale; the last group of a head may be smaller.
pub const SCALE_GROUP: usize = 32;
/// A scale is bf16.
pub const SCALE_BYTES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    F32,
    F16,
    BF16,
    /// One scale per [`SCALE_GROUP`] elements.
    Int8,
}

impl KvDtype {
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Int8 => 1,
        }
    }

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

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::BF16, Self::Int8]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Values {
    /// `dim` elements in addition to the key.
    Own { dim: usize },
    /// The first `dim` elements of the key itself: latent attention stores one vector for both.
    InKeys {
        /// At most `key_dim`.
        dim: usize,
    },
}

impl Values {
    pub fn dim(self) -> usize {
        match self {
            Self::Own { dim } | Self::InKeys { dim } => dim,
        }
    }

    /// Elements stored in addition to the key.
    pub fn stored_dim(self) -> usize {
        match self {
            Self::Own { dim } => dim,
            Self::InKeys { .. } => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagedKv {
    pub heads: usize,
    pub key_dim: usize,
    pub values: Values,
    /// Elements of a head's key that are copied as labels for sparse attention; 0 for none.
    pub labels: usize,
    pub dtype: KvDtype,
}

impl PagedKv {
    /// Keys and values, without labels and scales.
    pub fn elements_per_token(&self) -> usize {
        self.heads * (self.key_dim + self.values.stored_dim())
    }

    pub fn scales_per_token(&self) -> usize {
        let dims = [self.key_dim, self.values.stored_dim()];
        self.heads * dims.map(|dim| self.dtype.scales(dim)).iter().sum::<usize>()
    }

    pub fn bytes_per_token(&self) -> u64 {
        self.buffers().map(|buffer| buffer.bytes_per_token()).sum()
    }

    /// The buffers, in the order in which a token's parts are written.
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
            Values::InKeys { dim } => write!(f, "values in the first {dim} elements of each key")?,
        }
        if self.labels > 0 {
            write!(f, ", double-sparsity labels of {} channels", self.labels)?;
        }
        write!(f, ", {}", self.dtype.name())?;
        match self.scales_per_token() {
            0 => Ok(()),
            scales => write!(f, " with {scales} bfloat16 scales per token"),
        }
    }
}

/// A buffer of a layer's pages, with one slot for each token of the pool. The layout only determines the size of a
/// slot; page tables determine which slot a token has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBuffer {
    /// `k`, `v`, `label` or `scale`.
    pub name: &'static str,
    pub elements_per_token: usize,
    pub element_bytes: usize,
}

impl KvBuffer {
    pub fn bytes_per_token(&self) -> u64 {
        self.elements_per_token as u64 * self.element_bytes as u64
    }
}
