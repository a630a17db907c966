//! The cost of attention in a model's layers: FLOPs and bytes, dense or with double sparsity.

use super::storage::Sparsity;
use souffleur_base::kv_layout::{KvLayout, PagedKv};
use souffleur_model::config::ModelConfig;

/// The layers with the same window and K/V layout. FLOPs and bytes are the totals of these layers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layers {
    pub(super) window: Option<usize>,
    pub(super) flops_per_pair: f64,
    pub(super) bytes_per_token: f64,
    pub(super) sparse: Option<SparseLayers>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SparseLayers {
    /// The first position whose query is sparse.
    first: f64,
    /// Tokens that one head attends to. All heads together read `tokens_of_heads`, if no two choose the same token.
    tokens: f64,
    tokens_of_heads: f64,
    /// FLOPs per query and label, and bytes of one token's labels, in all layers.
    flops_per_label: f64,
    bytes_per_label: f64,
}

impl Layers {
    pub(super) fn of(
        model: &ModelConfig,
        layout: &KvLayout,
        sparsity: Option<Sparsity>,
    ) -> Vec<Self> {
        let mut kinds: Vec<(Option<usize>, PagedKv, f64)> = Vec::new();
        for (layer, window) in (0..layout.layers().len()).zip(&model.windows) {
            let Some(pages) = layout.read_by(layer) else {
                continue;
            };
            match kinds
                .iter_mut()
                .find(|kind| (kind.0, kind.1) == (*window, *pages))
            {
                Some((.., count)) => *count += 1.0,
                None => kinds.push((*window, *pages, 1.0)),
            }
        }
        let layers = kinds.into_iter().map(|(window, pages, count)| {
            let n_heads = model.num_attention_heads;
            let pair_elements = n_heads * (pages.key_dim + pages.values.dim());
            let label_bytes = pages.heads * pages.labels * pages.dtype.bytes();
            let kv_bytes = pages.bytes_per_token() - label_bytes as u64;
            let sparse = |sparsity: Sparsity| SparseLayers {
                first: sparsity.threshold.saturating_sub(1) as f64,
                tokens: sparsity.tokens as f64,
                tokens_of_heads: (sparsity.tokens * n_heads / pages.heads) as f64,
                flops_per_label: 2.0 * (n_heads * pages.labels) as f64 * count,
                bytes_per_label: label_bytes as f64 * count,
            };
            Self {
                window,
                flops_per_pair: 2.0 * pair_elements as f64 * count,
                bytes_per_token: kv_bytes as f64 * count,
                sparse: sparsity.filter(|_| pages.labels > 0).map(sparse),
            }
        });
        layers.collect()
    }

    /// FLOPs of the queries at positions `start..end`, and the bytes that they read and write.
    pub(super) fn cost(&self, start: f64, end: f64) -> (f64, f64) {
        let window = self.window.map_or(f64::INFINITY, |window| window as f64);
        let Some(sparse) = self.sparse.as_ref().filter(|sparse| sparse.first < end) else {
            let context = end.min(end - start + window - 1.0);
            return (
                self.flops_per_pair * pairs(start, end, window),
                self.bytes_per_token * (context + end - start) + self.label_bytes(end - start),
            );
        };
        let first = sparse.first.max(start);
        let n = end - first;
        let dense = if start < first { first } else { 0.0 };
        let chosen = end.min(n * sparse.tokens_of_heads);
        let flops = self.flops_per_pair
            * (pairs(start, first, window) + n * sparse.tokens.min(end))
            + sparse.flops_per_label * pairs(first, end, window);
        let bytes = self.bytes_per_token * (dense.max(chosen) + end - start);
        (flops, bytes + self.label_bytes(end + end - start))
    }

    fn label_bytes(&self, tokens: f64) -> f64 {
        let sparse = self.sparse.as_ref();
        sparse.map_or(0.0, |sparse| sparse.bytes_per_label * tokens)
    }
}

/// The number of (query, key) pairs of causal attention with this window, for the queries at `start..end`.
fn pairs(start: f64, end: f64, window: f64) -> f64 {
    let triangle = |n: f64| n * (n + 1.0) / 2.0;
    let full_from = window.clamp(start, end);
    triangle(full_from) - triangle(start)
        + if full_from < end {
            (end - full_from) * window
        } else {
            0.0
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_limits_the_keys_of_a_query() {
        let counted = |start: usize, end: usize, window: usize| {
            (start..end)
                .map(|position| (position + 1).min(window))
                .sum::<usize>() as f64
        };
        for (start, end, window) in [
            (0, 10, 4),
            (0, 3, 4),
            (2, 9, 4),
            (7, 9, 4),
            (3, 5, 4),
            (4, 5, 4),
        ] {
            let got = pairs(start as f64, end as f64, window as f64);
            assert_eq!(got, counted(start, end, window), "{start}..{end}, {window}");
        }
        assert_eq!(pairs(0.0, 10.0, f64::INFINITY), 55.0);
    }
}
