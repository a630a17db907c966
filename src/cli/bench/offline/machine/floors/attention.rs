//! The roofline cost of a layer's attention: multiplied elements, and bytes of keys, values and sparsity labels.

use souffleur::state::pool::kv_layout::PagedKv;

use super::Sequence;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AttentionCost {
    /// Bytes of the keys and values of one token.
    pub(super) kv_bytes: u64,
    /// Elements that all query heads of a token multiply with one key and its value.
    pub(super) pair_elements: u64,
    /// The number of tokens that a query attends to, itself included; `None` if unlimited.
    pub(super) window: Option<u64>,
    pub(super) sparse: Option<SparseCost>,
}

/// The sizes that determine the cost of a sparse query, which reads all labels, then attends to the chosen tokens only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SparseCost {
    /// The position of the first sparse query.
    pub(super) first: u64,
    pub(super) chosen_tokens: u64,
    /// Bytes of one token's labels: copies of some channels of its keys.
    pub(super) label_bytes: u64,
    /// Elements that all query heads of a token multiply with one label.
    pub(super) label_elements: u64,
}

impl AttentionCost {
    pub(super) fn new(pages: &PagedKv, n_heads: usize, window: Option<usize>) -> Self {
        Self {
            kv_bytes: pages.bytes_per_token() - label_bytes(pages),
            pair_elements: (n_heads * (pages.key_dim + pages.values.dim())) as u64,
            window: window.map(|tokens| tokens as u64),
            sparse: None,
        }
    }

    /// Splits the new tokens of a sequence into dense queries and sparse ones.
    fn parts(&self, sequence: Sequence) -> (Sequence, Option<(Sequence, SparseCost)>) {
        let Some(sparse) = self.sparse else {
            return (sequence, None);
        };
        let dense = Sequence {
            new_tokens: sparse
                .first
                .saturating_sub(sequence.cached_tokens)
                .min(sequence.new_tokens),
            ..sequence
        };
        let rest = Sequence {
            cached_tokens: sequence.cached_tokens + dense.new_tokens,
            new_tokens: sequence.new_tokens - dense.new_tokens,
        };
        (dense, Some((rest, sparse)).filter(|_| rest.new_tokens > 0))
    }

    pub(super) fn elements(&self, sequence: Sequence) -> u64 {
        let (dense, rest) = self.parts(sequence);
        let sparse = rest.map_or(0, |(rest, sparse)| {
            let tokens = sparse.chosen_tokens.min(rest.cached_tokens + 1);
            sparse.label_elements * query_key_pairs(rest, None)
                + self.pair_elements * tokens * rest.new_tokens
        });
        self.pair_elements * query_key_pairs(dense, self.window) + sparse
    }

    pub(super) fn bytes(&self, sequence: Sequence) -> u64 {
        let (dense, rest) = self.parts(sequence);
        let dense_tokens = match self.window {
            _ if dense.new_tokens == 0 => 0,
            None => u64::MAX,
            Some(window) => window.saturating_sub(1),
        };
        let chosen = rest.map_or(0, |(_, sparse)| sparse.chosen_tokens - 1);
        let labels = rest.map_or(0, |(_, sparse)| sparse.label_bytes);
        let cached = sequence.cached_tokens;
        cached.min(dense_tokens.max(chosen)) * self.kv_bytes + cached * labels
    }
}

pub(super) fn label_bytes(pages: &PagedKv) -> u64 {
    (pages.heads * pages.labels * pages.dtype.bytes()) as u64
}

/// The number of query-key pairs: each query attends to its own key and to earlier keys, at most `window` in all.
pub(super) fn query_key_pairs(sequence: Sequence, window: Option<u64>) -> u64 {
    let Sequence {
        cached_tokens,
        new_tokens,
    } = sequence;
    let all = |tokens: u64| tokens * (tokens + 1) / 2;
    let end = cached_tokens + new_tokens;
    let window = window.unwrap_or(u64::MAX);
    // Queries at positions below `full` attend to all earlier keys.
    let full = end.min(window).max(cached_tokens);
    let unlimited = all(full) - all(cached_tokens);
    match end - full {
        0 => unlimited,
        limited => unlimited + limited * window,
    }
}
