//! Double sparsity: a query with a long context attends to the keys whose labels it scores highest. A label is a part of
//! a key: a few of its channels, stored once more.
//!
//! Source: Yang et al. 2024, "Post-Training Sparse Attention with Double Sparsity".
//!
//! The position of a query alone decides whether it is sparse, and its choice depends only on the query and the keys
//! before it. So cached K/V equals recomputed K/V.

/// The channels of a layer's keys that are its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelChannels {
    /// `[n_kv_heads, per_head]`, ascending for each head.
    channels: Vec<u16>,
    per_head: usize,
}

impl LabelChannels {
    /// Takes the channels of each head, in any order.
    ///
    /// # Panics
    /// If there is no head, or heads differ in the number of their channels.
    pub fn new(heads: Vec<Vec<u16>>) -> Self {
        let per_head = heads.first().expect("a head").len();
        let mut channels = Vec::with_capacity(heads.len() * per_head);
        for mut head in heads {
            assert_eq!(head.len(), per_head, "channels of each head");
            head.sort_unstable();
            channels.extend(head);
        }
        Self { channels, per_head }
    }

    /// Channels of each head.
    pub fn per_head(&self) -> usize {
        self.per_head
    }

    /// Number of heads.
    pub fn n_heads(&self) -> usize {
        self.channels.len() / self.per_head
    }

    /// The channels of a head.
    pub fn head(&self, head: usize) -> &[u16] {
        &self.channels[head * self.per_head..][..self.per_head]
    }
}

/// Which queries are sparse, and the keys that they attend to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubleSparsity {
    /// A query is sparse if it sees at least this many tokens, itself included: a property of its position, never of
    /// the step that it is in.
    pub threshold: usize,
    /// Tokens that each head of a sparse query attends to, its own among them.
    pub tokens: usize,
    /// The labels of each layer; none where queries see all that they may.
    pub layers: Vec<Option<LabelChannels>>,
}

impl DoubleSparsity {
    /// The first position whose query is sparse.
    pub fn first_position(&self) -> usize {
        self.threshold.saturating_sub(1)
    }

    /// Elements of a head's label in a layer.
    pub fn labels_in(&self, layer: usize) -> usize {
        let labels = self.layers.get(layer).and_then(Option::as_ref);
        labels.map_or(0, LabelChannels::per_head)
    }
}
