//! Parameters of double sparsity: queries with long contexts attend only to the keys with the best label scores.
//!
//! A label is a copy of a few channels of a key.
//!
//! Source: Yang et al. 2024, "Post-Training Sparse Attention with Double Sparsity".
//!
//! Whether a query attends sparsely depends only on its position, and the selected keys only on the query and earlier
//! keys. So cached K/V equals recomputed K/V.

/// The key channels that the labels of a layer copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelChannels {
    /// `[n_kv_heads, per_head]`, ascending for each head.
    channels: Vec<u16>,
    per_head: usize,
}

impl LabelChannels {
    /// The channels of a head may be in any order.
    ///
    /// # Panics
    /// If there is no head, or heads differ in the number of their channels.
    pub fn new(heads: Vec<Vec<u16>>) -> Self {
        let per_head = heads.first().expect("there must be a head").len();
        let mut channels = Vec::with_capacity(heads.len() * per_head);
        for mut head in heads {
            assert_eq!(
                head.len(),
                per_head,
                "all heads must have the same number of channels"
            );
            head.sort_unstable();
            channels.extend(head);
        }
        Self { channels, per_head }
    }

    pub fn per_head(&self) -> usize {
        self.per_head
    }

    pub fn n_heads(&self) -> usize {
        self.channels.len() / self.per_head
    }

    pub fn head(&self, head: usize) -> &[u16] {
        &self.channels[head * self.per_head..][..self.per_head]
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubleSparsity {
    /// A query is sparse if it sees at least this many tokens, including its own.
    pub threshold: usize,
    /// Tokens that each head of a sparse query attends to, including its own.
    pub tokens: usize,
    /// The label channels of each layer with sparse attention.
    pub layers: Vec<Option<LabelChannels>>,
}

impl DoubleSparsity {
    pub fn first_position(&self) -> usize {
        self.threshold.saturating_sub(1)
    }

    pub fn labels_in(&self, layer: usize) -> usize {
        let labels = self.layers.get(layer).and_then(Option::as_ref);
        labels.map_or(0, LabelChannels::per_head)
    }
}
