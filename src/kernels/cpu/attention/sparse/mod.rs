//! Attention of queries with a long context to some keys only (double sparsity).
//!
//! Each query head scores the labels of all keys before its own and attends to those that score highest and to its own
//! key, in ascending position, as if they were the whole sequence: blocks, spans and chains of sums are those of
//! [`super`]. What is chosen depends on the query, its position and the keys before it, so the result does too; with as
//! many keys as there are it has the bits of a query that sees them all.

mod best;
mod chosen;
mod labels;

use std::sync::atomic::{AtomicUsize, Ordering};

use self::best::Best;
use super::super::element::{Borrowed, Storage};
use super::super::labels::Labels;
use super::kv_element::KvElement;
use super::space::Sizes;
use super::{
    BLOCK, CpuBatch, HeadShape, Isa, Kernel, LANES, Lanes, Lines, PageTable, Planes, Shared,
    Tensor, ThreadPool, dispatch,
};
use crate::kernels::sparsity::LabelChannels;

/// Queries of a key head that score a block of labels together.
const TILE_ROWS: usize = 32;

/// Neighbouring query tokens of a row.
#[derive(Clone, Copy, Debug)]
struct Tile {
    /// Index of the first in the step, and its position.
    first_token: usize,
    first_position: usize,
    n_tokens: usize,
    /// Where the slots of the row's tokens begin.
    slots: usize,
}

/// The sparse queries of a step, and the buffers of threads.
#[derive(Default)]
pub struct SparseAttention {
    /// The step, and the query heads of a key head, that the tiles are for.
    planned: Option<(u64, usize)>,
    tiles: Vec<Tile>,
    /// Slots of all tokens of each row that has tiles: looked up once a step, not in every layer.
    slots: Vec<u32>,
    /// Keys that the tiles' queries see, one by one.
    pairs: usize,
    spaces: Vec<Space>,
}

/// What all items of a layer have in common.
#[derive(Clone, Copy)]
struct Step<'a, F> {
    heads: &'a HeadShape,
    sinks: Option<&'a [f32]>,
    q: &'a Tensor,
    planes: Planes,
    kv: &'a [F],
    channels: &'a LabelChannels,
    labels: &'a [F],
    /// Elements from a head's labels to the next head's.
    label_plane: usize,
    slots: &'a [u32],
    /// Keys of each query, its own among them.
    n_chosen: usize,
    out: Shared<'a, f32>,
}

/// An item: a tile and a key head.
struct Work<'a, F> {
    step: Step<'a, F>,
    tile: Tile,
    kv_head: usize,
    space: &'a mut Space,
}

/// Buffers of one item at a time; they only grow.
#[derive(Default)]
struct Space {
    /// Channels of the queries as words, `[rows, label words]`.
    label_queries: Lines<u32>,
    /// A query as words.
    query: Lines<u32>,
    /// A block of labels or of keys, `[depth, BLOCK]` words, and one of values.
    keys: Lines<u32>,
    values: Lines<u32>,
    /// `[rows, BLOCK]`.
    scores: Lines<f32>,
    weights: Lines<u32>,
    decay: Lines<f32>,
    /// Records of a span and of those before it.
    span: Lines<f32>,
    total: Lines<f32>,
    best: Vec<Best>,
}

impl Space {
    fn fit<F: KvElement>(&mut self, heads: &HeadShape, channels: usize) {
        let sizes = Sizes::of::<F>(heads, 1);
        let rows = heads.group() * tile_tokens(heads.group());
        let label_words = super::padded(channels) / F::PER_WORD;
        self.label_queries.make_room(rows * label_words);
        self.query.make_room(sizes.query_words);
        self.keys
            .make_room(label_words.max(sizes.query_words) * BLOCK);
        self.values.make_room(BLOCK / F::PER_WORD * sizes.width);
        self.scores.make_room(rows * BLOCK);
        self.weights.make_room(BLOCK / F::PER_WORD);
        self.decay.make_room(LANES);
        self.span.make_room(sizes.record);
        self.total.make_room(sizes.record);
        if self.best.len() < rows {
            self.best.resize_with(rows, Best::default);
        }
    }
}

fn tile_tokens(group: usize) -> usize {
    (TILE_ROWS / group).max(1)
}

impl SparseAttention {
    /// Attends the sparse queries of the step; returns the bytes of labels, keys and values that were read.
    ///
    /// # Panics
    /// If keys and labels are of different types.
    pub fn attend(
        &mut self,
        (pool, isa): (&mut ThreadPool, Isa),
        q: &Tensor,
        (heads, sinks): (&HeadShape, Option<&[f32]>),
        (kv, labels, table): (&Storage, &Labels, &PageTable),
        batch: &CpuBatch,
        out: &mut Tensor,
    ) -> usize {
        self.plan(batch, table, labels.rules().first_position(), heads.group());
        if self.tiles.is_empty() {
            return 0;
        }
        let given = ((pool, isa), q, (heads, sinks), labels, out);
        match (kv, labels.storage()) {
            (Storage::F32(kv), Storage::F32(labels)) => self.run(given, kv.slice(), labels.slice()),
            (Storage::F16(kv), Storage::F16(labels)) => self.run(given, kv.slice(), labels.slice()),
            (Storage::BF16(kv), Storage::BF16(labels)) => {
                self.run(given, kv.slice(), labels.slice())
            }
            _ => panic!("labels have the keys' type"),
        }
    }

    fn run<F: KvElement>(
        &mut self,
        ((pool, isa), q, (heads, sinks), labels, out): Given<'_>,
        kv: &[F],
        label_elements: &[F],
    ) -> usize {
        let channels = labels.channels();
        self.spaces.resize_with(pool.n_threads(), Space::default);
        for space in &mut self.spaces {
            space.fit::<F>(heads, channels.per_head());
        }
        let step = Step {
            heads,
            sinks,
            q,
            planes: Planes::of(heads, kv.len()),
            kv,
            channels,
            labels: label_elements,
            label_plane: labels.plane(),
            slots: &self.slots,
            n_chosen: labels.rules().tokens,
            out: Shared::new(out.values_mut()),
        };
        let (tiles, n_bytes) = (&self.tiles, AtomicUsize::new(0));
        let cost = self.pairs * heads.n_heads * channels.per_head();
        // Tiles of a head follow each other: a thread finds its labels and keys in the cache.
        let item = |space: &mut Space, index: usize| {
            let (kv_head, tile) = (index / tiles.len(), tiles[index % tiles.len()]);
            let bytes = dispatch(
                isa,
                Work {
                    step,
                    tile,
                    kv_head,
                    space,
                },
            );
            n_bytes.fetch_add(bytes, Ordering::Relaxed);
        };
        let n_items = heads.n_kv_heads * tiles.len();
        pool.for_each_in_runs_with(&mut self.spaces, n_items, cost, &item);
        n_bytes.into_inner()
    }

    /// The positions that each query of the last item of one thread has chosen.
    #[cfg(test)]
    pub fn chosen(&self, n_rows: usize) -> Vec<Vec<u32>> {
        let best = self.spaces[0].best[..n_rows].iter();
        best.map(|best| best.chosen().to_vec()).collect()
    }

    #[cfg(test)]
    pub fn n_tiles(&self) -> usize {
        self.tiles.len()
    }

    /// Finds the tiles of a step, unless they are known.
    fn plan(&mut self, batch: &CpuBatch, table: &PageTable, first_sparse: usize, group: usize) {
        let planned = Some((batch.serial(), group));
        if self.planned == planned {
            return;
        }
        self.planned = planned;
        self.tiles.clear();
        self.slots.clear();
        self.pairs = 0;
        for segment in batch.segments() {
            let (first, end) = (segment.first_position, segment.end_position());
            let sparse = first.max(first_sparse)..end;
            if sparse.is_empty() {
                continue;
            }
            let slots = self.slots.len();
            table.for_slots(segment.row, 0..end, |_, slot| self.slots.push(slot as u32));
            for position in sparse.clone().step_by(tile_tokens(group)) {
                let n_tokens = tile_tokens(group).min(end - position);
                self.pairs += n_tokens * position;
                self.tiles.push(Tile {
                    first_token: segment.first_token + position - first,
                    first_position: position,
                    n_tokens,
                    slots,
                });
            }
        }
    }
}

/// What a layer's attention is given.
type Given<'a> = (
    (&'a mut ThreadPool, Isa),
    &'a Tensor,
    (&'a HeadShape, Option<&'a [f32]>),
    &'a Labels,
    &'a mut Tensor,
);

impl<F: KvElement> Kernel for Work<'_, F> {
    /// Bytes that were read.
    type Output = usize;

    #[inline(always)]
    fn run<S: Lanes>(mut self) -> usize {
        let group = self.step.heads.group();
        self.load_label_queries::<S>();
        let mut bytes = self.score_labels::<S>();
        for token in 0..self.tile.n_tokens {
            for best in &mut self.space.best[token * group..(token + 1) * group] {
                best.choose(self.tile.first_position + token);
                let n_elements = best.chosen().len() * self.step.planes.head_elements();
                bytes += n_elements * size_of::<F>();
            }
        }
        self.attend_chosen::<S>();
        bytes
    }
}

impl<F: KvElement> Work<'_, F> {
    /// Slots of the row's tokens, by position.
    fn slots(&self) -> &[u32] {
        let end = self.tile.first_position + self.tile.n_tokens;
        &self.step.slots[self.tile.slots..][..end]
    }

    /// The query of a row of the tile.
    fn query(&self, row: usize) -> &[f32] {
        let (group, dim) = (self.step.heads.group(), self.step.heads.key_dim);
        let head = self.kv_head * group + row % group;
        &self.step.q.row(self.tile.first_token + row / group)[head * dim..][..dim]
    }
}
