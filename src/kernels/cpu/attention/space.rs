//! The buffers of a thread, and the sizes of what is in them.

use super::super::memory::Lines;
use super::block::CHUNK_ROWS;
use super::block_cache::BlockCache;
use super::kv_element::KvElement;
use super::state::record_len;
use super::{BLOCK, Seen, padded};
use crate::kernels::HeadShape;

/// Buffers of one item at a time; they only grow.
#[derive(Default)]
pub struct Workspace {
    /// Queries as words, `[heads, rows, query_words]`.
    pub queries: Lines<u32>,
    /// Keys and values of blocks.
    pub blocks: BlockCache,
    /// Values of a block without what one query does not see.
    pub masked: Lines<u32>,
    /// What each query sees of the block, `[rows]`.
    pub seen: Vec<Seen>,
    /// Of a chunk of rows: `[CHUNK_ROWS, BLOCK]`.
    pub scores: Lines<f32>,
    /// `[CHUNK_ROWS, BLOCK / PER_WORD]` words.
    pub weights: Lines<u32>,
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
        self.blocks.fit::<F>(sizes);
        if self.seen.len() < sizes.rows {
            self.seen.resize(sizes.rows, Seen::default());
        }
        self.scores.make_room(CHUNK_ROWS * BLOCK);
        self.weights.make_room(CHUNK_ROWS * BLOCK / F::PER_WORD);
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
    /// Words of a query, padded to whole pairs of vectors.
    pub query_words: usize,
    /// Words of a query and of a key that count.
    pub depth: usize,
    /// Elements of a value, padded to whole pairs of vectors.
    pub width: usize,
    pub record: usize,
}

impl Sizes {
    /// Sizes of an item of so many query tokens.
    pub fn of<F: KvElement>(heads: &HeadShape, n_tokens: usize) -> Self {
        let group = heads.group();
        let width = padded(heads.values.dim());
        Self {
            rows: n_tokens * group,
            group,
            query_words: padded(heads.key_dim) / F::PER_WORD,
            depth: heads.key_dim.div_ceil(F::PER_WORD),
            width,
            record: record_len(width),
        }
    }
}
