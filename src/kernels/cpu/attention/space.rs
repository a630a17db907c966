//! The buffers of a thread, and the sizes of what is in them.

use super::super::memory::Lines;
use super::block::CHUNK_ROWS;
use super::block_cache::BlockCache;
use super::kv_element::KvElement;
use super::state::record_len;
use super::{BLOCK, Seen};
use crate::kernels::HeadShape;
use crate::state::pool::kv_layout::{SCALE_GROUP, Values};

/// Buffers of one item at a time; they only grow.
#[derive(Default)]
pub struct Workspace {
    /// Queries as words, `[heads, rows, query_words]`, and the scale of each.
    pub queries: Lines<u32>,
    pub query_scales: Lines<f32>,
    /// Scales of a block of a head: `[n_scales, BLOCK]`.
    pub kv_scales: Lines<f32>,
    /// Whether none of them stands for what is no number.
    pub are_scales_finite: bool,
    /// Keys and values of blocks.
    pub blocks: BlockCache,
    /// Values of a block without what one query does not see.
    pub masked: Lines<u32>,
    /// The part of the block that each query sees, `[rows]`.
    pub seen: Vec<Seen>,
    /// Of a chunk of rows: `[CHUNK_ROWS, BLOCK]`.
    pub scores: Lines<f32>,
    /// `[CHUNK_ROWS, weight_words]`.
    pub weights: Lines<u32>,
    /// `[CHUNK_ROWS, value_scales]`.
    pub weight_scales: Lines<f32>,
    /// `[CHUNK_ROWS]`.
    pub decay: Lines<f32>,
    /// Records of the current span and of the spans before it, `[heads, rows]`.
    pub span: Lines<f32>,
    pub total: Lines<f32>,
}

impl Workspace {
    /// Makes room for items with up to so many query tokens and records.
    pub fn fit<F: KvElement>(&mut self, heads: &HeadShape, n_tokens: usize, n_records: usize) {
        let sizes = Sizes::of::<F>(heads, n_tokens);
        self.queries.make_room(n_records * sizes.query_words);
        self.query_scales.make_room(n_records);
        self.kv_scales.make_room(sizes.n_scales * BLOCK);
        self.blocks.fit::<F>(sizes);
        if self.seen.len() < sizes.rows {
            self.seen.resize(sizes.rows, Seen::default());
        }
        self.scores.make_room(CHUNK_ROWS * BLOCK);
        self.weights.make_room(CHUNK_ROWS * sizes.weight_words);
        self.weight_scales
            .make_room(CHUNK_ROWS * sizes.value_scales);
        self.decay.make_room(CHUNK_ROWS);
        self.span.make_room(n_records * sizes.record);
        self.total.make_room(n_records * sizes.record);
    }
}

/// Sizes of an item.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Queries of a key head: tokens times heads of a group.
    pub rows: usize,
    /// Query heads of a key head.
    pub group: usize,
    /// Words of a query, padded to whole chunks.
    pub query_words: usize,
    /// Words of a query and of a key that count.
    pub depth: usize,
    /// Elements of a value, padded to whole chunks.
    pub width: usize,
    pub record: usize,
    /// Scales of a key and the value beside it.
    pub n_scales: usize,
    /// Scales of a value, and how many are before them.
    pub value_scales: usize,
    pub before_value_scales: usize,
    /// Words of a row's weights of a block: values with a scale each have weights of their own.
    pub weight_words: usize,
}

impl Sizes {
    /// Sizes of an item of so many query tokens.
    pub fn of<F: KvElement>(heads: &HeadShape, n_tokens: usize) -> Self {
        let group = heads.group();
        let width = F::padded(heads.values.dim());
        let scales = |dim: usize| {
            if F::SCALED {
                dim.div_ceil(SCALE_GROUP)
            } else {
                0
            }
        };
        let value_scales = scales(heads.values.dim());
        Self {
            rows: n_tokens * group,
            group,
            query_words: F::padded(heads.key_dim) / F::PER_WORD,
            depth: F::depth(heads.key_dim),
            width,
            record: record_len(width),
            n_scales: scales(heads.key_dim) + scales(heads.values.stored_dim()),
            value_scales,
            before_value_scales: match heads.values {
                Values::Own { .. } => scales(heads.key_dim),
                Values::InKeys { .. } => 0,
            },
            weight_words: BLOCK / F::PER_WORD * value_scales.max(1),
        }
    }
}
