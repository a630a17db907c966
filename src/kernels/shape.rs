//! Sizes of a decoder that determine the memory of activations.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderShape {
    pub hidden: usize,
    pub intermediate: usize,
    pub vocab: usize,
    pub attention: AttentionShape,
}

/// Head counts common to all attention layers; sizes that vary by layer are in [`HeadShape`](super::HeadShape).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

impl AttentionShape {
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Elements of a token's keys, over all key heads; its values have as many.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
