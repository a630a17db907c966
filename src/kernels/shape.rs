//! Sizes of a decoder for which a backend allocates memory.

/// Sizes of a decoder, which determine the memory of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderShape {
    /// Width of the residual stream, in elements.
    pub hidden: usize,
    /// Width of the MLP, in elements.
    pub intermediate: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// The heads of every layer.
    pub attention: AttentionShape,
}

/// The heads that all attention layers of a decoder have; sizes that differ from layer to layer are in
/// [`HeadShape`](super::HeadShape).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
}

impl AttentionShape {
    /// Width of all query heads of a token, in elements.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads of a token, in elements; the values are as wide.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
