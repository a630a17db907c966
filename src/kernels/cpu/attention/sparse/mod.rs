//! Sparse attention for long contexts: each query attends to its best-scoring keys only (double sparsity).
//!
//! Each query head scores the labels (important channels) of all earlier keys. It attends to the best keys and its own
//! key in ascending position, in the blocks and spans of [`super`]. The selection depends only on the query, its
//! position and the earlier keys; if all keys are selected, the result is bit-identical to full attention.

mod best;
mod chosen;
mod labels;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::best::Best;
use super::super::batch::CpuBatch;
use super::super::element::{Borrowed, Storage};
use super::super::kv::PageTable;
use super::super::labels::Labels;
use super::super::memory::Lines;
use super::super::nodes::PerNode;
use super::super::planes::Planes;
use super::super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::super::tensor::{Shared, Tensor};
use super::super::threads::{Order, ThreadPool};
use super::float_kv::FloatKv;
use super::kv_element::KvElement;
use super::seen::BLOCK;
use super::sizes::Sizes;
use crate::HeadShape;
use crate::sparsity::LabelChannels;

/// Queries of a key head that score a block of labels together.
const TILE_ROWS: usize = 32;
/// With fewer items than this for each thread, the keys of a tile are scored in parts.
const ITEMS_PER_THREAD: usize = 2;
/// Minimum keys of a part, in whole blocks.
const PART_KEYS: usize = 2 * BLOCK;

#[derive(Clone, Copy, Debug)]
struct Tile {
    /// Step index of the first token, and its position.
    first_token: usize,
    first_position: usize,
    n_tokens: usize,
    /// Index in `slots` of the slot of the row's first token.
    first_slot: usize,
}

#[derive(Default)]
pub struct SparseAttention {
    /// Serial number of the batch, and query heads per key head, for which the tiles were planned.
    planned: Option<(u64, usize)>,
    tiles: Vec<Tile>,
    /// Slots of all tokens of each row that has tiles, looked up once a step.
    slots: Vec<u32>,
    token_key_pairs: usize,
    /// The best keys of each part, if any, `[items, parts, rows, n_chosen - 1]`.
    candidates: Vec<u64>,
    spaces: Vec<Space>,
}

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
    label_stride: usize,
    slots: &'a [u32],
    /// Number of keys that each query attends to, including its own.
    n_chosen: usize,
    out: Shared<'a, f32>,
}

struct Work<'a, F> {
    step: Step<'a, F>,
    tile: Tile,
    kv_head: usize,
    stage: Stage<'a>,
    space: &'a mut Space,
}

/// What an item does. Scoring the keys in parts doesn't affect which keys are selected.
enum Stage<'a> {
    /// Scores all keys and attends.
    Whole,
    /// Scores some keys and stores the best keys of each row.
    Part {
        keys: Range<usize>,
        best: &'a mut [u64],
    },
    /// Attends to the best of all parts.
    Rest { parts: &'a [u64], part_len: usize },
}

#[derive(Default)]
struct Space {
    /// Channels of the queries as words, `[rows, label words]`.
    label_queries: Lines<u32>,
    query: Lines<u32>,
    /// A block of labels or of keys, `[depth, BLOCK]` words, and one of values.
    keys: Lines<u32>,
    values: Lines<u32>,
    /// `[rows, BLOCK]`.
    scores: Lines<f32>,
    weights: Lines<u32>,
    rescale: Lines<f32>,
    /// Records of a span and of the preceding spans.
    span: Lines<f32>,
    total: Lines<f32>,
    best: Vec<Best>,
}

impl Space {
    fn fit<F: FloatKv>(&mut self, heads: &HeadShape, channels: usize) {
        let sizes = Sizes::of::<F>(heads, 1);
        let rows = heads.group() * tile_tokens(heads.group());
        let label_words = F::padded(channels) / F::PER_WORD;
        self.label_queries.grow_to(rows * label_words);
        self.query.grow_to(sizes.query_words);
        self.keys
            .grow_to(label_words.max(sizes.query_words) * BLOCK);
        self.values.grow_to(BLOCK / F::PER_WORD * sizes.width);
        self.scores.grow_to(rows * BLOCK);
        self.weights.grow_to(BLOCK / F::PER_WORD);
        self.rescale.grow_to(LANES);
        self.span.grow_to(sizes.record);
        self.total.grow_to(sizes.record);
        if self.best.len() < rows {
            self.best.resize_with(rows, Best::default);
        }
    }
}

fn tile_tokens(group: usize) -> usize {
    (TILE_ROWS / group).max(1)
}

impl SparseAttention {
    /// Returns the bytes of labels, keys and values that were read.
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
        let args = ((pool, isa), q, (heads, sinks), labels, out);
        match (kv, labels.storage()) {
            (Storage::F32(kv), Storage::F32(labels)) => self.run(args, kv.slice(), labels.slice()),
            (Storage::F16(kv), Storage::F16(labels)) => self.run(args, kv.slice(), labels.slice()),
            (Storage::BF16(kv), Storage::BF16(labels)) => {
                self.run(args, kv.slice(), labels.slice())
            }
            _ => panic!("labels and keys must have the same element type"),
        }
    }

    fn run<F: FloatKv>(
        &mut self,
        ((pool, isa), q, (heads, sinks), labels, out): Args<'_>,
        kv: &[F],
        label_elements: &[F],
    ) -> usize {
        let channels = labels.channels();
        self.fit_spaces::<F>(pool.n_threads(), heads, channels.per_head());
        let step = Step {
            heads,
            sinks,
            q,
            planes: Planes::of(heads, kv.len()),
            kv,
            channels,
            labels: label_elements,
            label_stride: labels.head_stride(),
            slots: &self.slots,
            n_chosen: labels.rules().tokens,
            out: Shared::new(out.values_mut()),
        };
        let tiles = &self.tiles;
        let n_items = heads.n_kv_heads * tiles.len();
        let most_tokens = tiles.iter().map(|tile| tile.n_tokens).max().unwrap_or(0);
        let n_parts = self.n_parts(n_items, pool.n_threads());
        let cost = self.token_key_pairs * heads.n_heads * channels.per_head();
        let n_bytes = AtomicUsize::new(0);
        // Consecutive tiles of a head find its labels and keys in the cache.
        let of_item = |item: usize| (item / tiles.len(), tiles[item % tiles.len()]);
        let work = |space: &mut Space, item: usize, stage: Stage<'_>| {
            let (kv_head, tile) = of_item(item);
            let work = Work {
                step,
                tile,
                kv_head,
                stage,
                space,
            };
            n_bytes.fetch_add(dispatch(isa, work), Ordering::Relaxed);
        };
        let spaces = self.spaces.as_mut_slice();
        let node_items = items_per_node(pool, heads.n_kv_heads, tiles.len());
        if n_parts == 1 {
            let whole = |space: &mut Space, item: usize| work(space, item, Stage::Whole);
            pool.for_each_by_node_with((&mut *spaces, Order::Runs), &node_items, cost, &whole);
            return n_bytes.into_inner();
        }
        let parts_of_nodes: PerNode<usize> =
            node_items.iter().map(|items| items * n_parts).collect();
        let part_len = most_tokens * heads.group() * (step.n_chosen - 1);
        let item_len = n_parts * part_len;
        self.candidates.clear();
        self.candidates.resize(n_items * item_len, 0);
        let candidates = Shared::new(&mut self.candidates);
        let part = |space: &mut Space, index: usize| {
            let (item, part) = (index / n_parts, index % n_parts);
            let keys = keys_of_part((part, n_parts), of_item(item).1.end() - 1);
            // SAFETY: each part belongs to one item.
            let best = unsafe { candidates.part(index * part_len, part_len) };
            work(space, item, Stage::Part { keys, best });
        };
        pool.for_each_by_node_with((&mut *spaces, Order::Runs), &parts_of_nodes, cost, &part);
        let candidates = &self.candidates;
        let rest = |space: &mut Space, item: usize| {
            let parts = &candidates[item * item_len..][..item_len];
            work(space, item, Stage::Rest { parts, part_len });
        };
        pool.for_each_by_node_with((&mut *spaces, Order::Runs), &node_items, cost, &rest);
        n_bytes.into_inner()
    }

    fn fit_spaces<F: FloatKv>(&mut self, n_threads: usize, heads: &HeadShape, channels: usize) {
        self.spaces.resize_with(n_threads, Space::default);
        for space in &mut self.spaces {
            space.fit::<F>(heads, channels);
        }
    }

    /// Number of parts in which the keys of each item are scored: several if items are too few for the threads.
    fn n_parts(&self, n_items: usize, n_threads: usize) -> usize {
        let longest = self.tiles.iter().map(Tile::end).max().unwrap_or(0);
        let wanted = ITEMS_PER_THREAD * n_threads;
        if n_items < wanted {
            wanted.div_ceil(n_items).min(longest.div_ceil(PART_KEYS))
        } else {
            1
        }
    }

    /// For tests: the positions that each query of the first thread's last item selected.
    pub fn chosen(&self, n_rows: usize) -> Vec<Vec<u32>> {
        let best = self.spaces[0].best[..n_rows].iter();
        best.map(|best| best.chosen().to_vec()).collect()
    }

    /// For tests.
    pub fn n_tiles(&self) -> usize {
        self.tiles.len()
    }

    fn plan(&mut self, batch: &CpuBatch, table: &PageTable, first_sparse: usize, group: usize) {
        let planned = Some((batch.serial(), group));
        if self.planned == planned {
            return;
        }
        self.planned = planned;
        self.tiles.clear();
        self.slots.clear();
        self.token_key_pairs = 0;
        for segment in batch.segments() {
            let (first, end) = (segment.first_position, segment.end_position());
            let sparse = first.max(first_sparse)..end;
            if sparse.is_empty() {
                continue;
            }
            let first_slot = self.slots.len();
            table.for_slots(segment.row, 0..end, |_, slot| self.slots.push(slot as u32));
            for position in sparse.clone().step_by(tile_tokens(group)) {
                let n_tokens = tile_tokens(group).min(end - position);
                self.token_key_pairs += n_tokens * position;
                self.tiles.push(Tile {
                    first_token: segment.first_token + position - first,
                    first_position: position,
                    n_tokens,
                    first_slot,
                });
            }
        }
    }
}

/// Number of items of each node. Items are in the order of heads, so those of a node are consecutive.
fn items_per_node(pool: &ThreadPool, n_heads: usize, n_tiles: usize) -> PerNode<usize> {
    let of_nodes = pool.nodes().heads(n_heads).into_iter();
    of_nodes.map(|own| own.len() * n_tiles).collect()
}

/// The keys of one of several parts, each of whole blocks.
fn keys_of_part((part, n_parts): (usize, usize), n_keys: usize) -> Range<usize> {
    let n_in_part = n_keys.div_ceil(n_parts).next_multiple_of(BLOCK);
    let first = (part * n_in_part).min(n_keys);
    first..n_keys.min(first + n_in_part)
}

type Args<'a> = (
    (&'a mut ThreadPool, Isa),
    &'a Tensor,
    (&'a HeadShape, Option<&'a [f32]>),
    &'a Labels,
    &'a mut Tensor,
);

impl<F: FloatKv> Kernel for Work<'_, F> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Lanes>(mut self) -> usize {
        for best in &mut self.space.best[..self.tile.n_tokens * self.step.heads.group()] {
            best.begin(self.step.n_chosen - 1);
        }
        let labels = match std::mem::replace(&mut self.stage, Stage::Whole) {
            Stage::Whole => self.score::<S>(0..self.tile.end() - 1),
            Stage::Part { keys, best } => {
                let bytes = self.score::<S>(keys);
                self.store_best(best);
                return bytes;
            }
            Stage::Rest { parts, part_len } => {
                parts
                    .chunks(part_len.max(1))
                    .for_each(|part| self.add_best(part));
                0
            }
        };
        labels + self.choose_and_attend::<S>()
    }
}

impl Tile {
    fn end(&self) -> usize {
        self.first_position + self.n_tokens
    }
}

impl<F: FloatKv> Work<'_, F> {
    #[inline(always)]
    fn score<S: Lanes>(&mut self, keys: Range<usize>) -> usize {
        self.load_label_queries::<S>();
        self.score_labels::<S>(keys)
    }

    /// Returns the bytes of keys and values read.
    #[inline(always)]
    fn choose_and_attend<S: Lanes>(&mut self) -> usize {
        let group = self.step.heads.group();
        let mut n_chosen = 0;
        for token in 0..self.tile.n_tokens {
            for best in &mut self.space.best[token * group..(token + 1) * group] {
                best.choose(self.tile.first_position + token);
                n_chosen += best.chosen().len();
            }
        }
        self.attend_chosen::<S>();
        n_chosen * self.step.planes.head_elements() * size_of::<F>()
    }

    /// Stores the best keys of each row; entries without a key remain zero.
    fn store_best(&mut self, to: &mut [u64]) {
        let wanted = self.step.n_chosen - 1;
        if wanted == 0 {
            return;
        }
        let n_rows = self.n_rows();
        let best = self.space.best.iter_mut().take(n_rows);
        for (to, best) in to.chunks_mut(wanted).zip(best) {
            let entries = best.entries();
            to[..entries.len()].copy_from_slice(entries);
        }
    }

    fn add_best(&mut self, part: &[u64]) {
        let (wanted, n_rows) = (self.step.n_chosen - 1, self.n_rows());
        let rows = part.chunks(wanted.max(1)).take(n_rows);
        for (best, entries) in self.space.best.iter_mut().zip(rows) {
            best.add_entries(entries);
        }
    }

    fn slots(&self) -> &[u32] {
        &self.step.slots[self.tile.first_slot..][..self.tile.end()]
    }

    fn query(&self, row: usize) -> &[f32] {
        let (group, dim) = (self.step.heads.group(), self.step.heads.key_dim);
        let head = self.kv_head * group + row % group;
        &self.step.q.row(self.tile.first_token + row / group)[head * dim..][..dim]
    }
}
