//! The layout of a layer's keys and values in pages.

use std::fmt;

/// Elements of a key or a value that share a scale, where they are quantised; the last group of a head may have less.
pub const SCALE_GROUP: usize = 32;
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
    /// `dim` elements in addition to the key.
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

    /// Elements that are stored in addition to the key.
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
            scales => write!(f, " with {scales} bfloat16 scales per token"),
        }
    }
}

/// One buffer of a layer's pages, as long as the pool has slots: a layout decides the width of a slot, never the slot
/// of a token.
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
