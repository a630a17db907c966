//! A thread's scratch buffers for attention.

use super::super::memory::Lines;
use super::block_cache::BlockCache;
use super::kv_element::KvElement;
use super::seen::{BLOCK, KeyRange};
use super::sizes::Sizes;
use crate::HeadShape;

/// Queries that are scored against a block together; their scores stay in L1.
pub const CHUNK_ROWS: usize = 96;

/// Buffers of one work item; they only grow.
#[derive(Default)]
pub struct Workspace {
    /// Queries as words, `[heads, rows, query_words]`, and the scale of each.
    pub queries: Lines<u32>,
    pub query_scales: Lines<f32>,
    /// `[n_scales, BLOCK]`.
    pub kv_scales: Lines<f32>,
    pub are_scales_finite: bool,
    pub blocks: BlockCache,
    /// A block's values, zero where a query does not see them.
    pub masked: Lines<u32>,
    /// The part of the block that each query sees, `[rows]`.
    pub seen: Vec<KeyRange>,
    /// `[CHUNK_ROWS, BLOCK]`.
    pub scores: Lines<f32>,
    /// `[CHUNK_ROWS, weight_words]`.
    pub weights: Lines<u32>,
    /// `[CHUNK_ROWS, value_scales]`.
    pub weight_scales: Lines<f32>,
    /// `[CHUNK_ROWS]`.
    pub rescale: Lines<f32>,
    /// Records of the current span and of the preceding spans, `[heads, rows]`.
    pub span: Lines<f32>,
    pub total: Lines<f32>,
}

impl Workspace {
    pub fn fit<F: KvElement>(&mut self, heads: &HeadShape, n_tokens: usize, n_records: usize) {
        let sizes = Sizes::of::<F>(heads, n_tokens);
        self.queries.grow_to(n_records * sizes.query_words);
        self.query_scales.grow_to(n_records);
        self.kv_scales.grow_to(sizes.n_scales * BLOCK);
        self.blocks.fit::<F>(sizes);
        if self.seen.len() < sizes.rows {
            self.seen.resize(sizes.rows, KeyRange::default());
        }
        self.scores.grow_to(CHUNK_ROWS * BLOCK);
        self.weights.grow_to(CHUNK_ROWS * sizes.weight_words);
        self.weight_scales.grow_to(CHUNK_ROWS * sizes.value_scales);
        self.rescale.grow_to(CHUNK_ROWS);
        self.span.grow_to(n_records * sizes.record);
        self.total.grow_to(n_records * sizes.record);
    }
}
