//! Attention over the page table, for prefill chunks and decodes alike.
//!
//! Keys are visited in blocks of [`BLOCK`] that begin at multiples of it in the sequence, with a running maximum and
//! sum (online softmax). A query's result depends on its position, its own vector and the keys at positions it may
//! see: not on the chunk it came in, the page size, or the queries computed beside it.

use std::cell::RefCell;

use super::CpuBatch;
use super::element::{Element, with_elements};
use super::kv::{KvPool, PageTable};
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;
use crate::ids::RowId;
use crate::kernels::HeadShape;

/// Keys in a block.
const BLOCK: usize = 32;
/// Queries (tokens times heads of a group) that share the widening of a block.
const TILE_QUERIES: usize = 32;

/// Some queries of one row against one key head.
#[derive(Clone, Copy, Debug)]
struct Item {
    row: RowId,
    /// Index of the first query token in the step.
    first_token: usize,
    n_tokens: usize,
    /// Position of the first query token in its sequence.
    first_position: usize,
    kv_head: usize,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// Attends each query of the step to its row's keys in `layer`.
///
/// # Shapes
/// `q` and `out`: `[n_tokens, n_heads * head_dim]`.
pub fn attend(
    pool: &mut ThreadPool,
    isa: Isa,
    q: &Tensor,
    heads: &HeadShape,
    (kv, layer, table): (&KvPool, usize, &PageTable),
    batch: &CpuBatch,
    mut out: Tensor,
) -> Tensor {
    let items = items(batch, heads);
    let shared = Shared::new(out.values_mut());
    with_elements!(kv.layer(layer), kv => {
        pool.for_each(items.len(), cost(&items, heads), &|index| {
            WORKSPACE.with_borrow_mut(|work| {
                dispatch(isa, Tile { item: items[index], heads, q, kv, table, out: shared, work });
            });
        });
    });
    out
}

fn items(batch: &CpuBatch, heads: &HeadShape) -> Vec<Item> {
    let group = heads.n_heads / heads.n_kv_heads;
    let tile_tokens = (TILE_QUERIES / group).max(1);
    let mut items = Vec::new();
    for segment in batch.segments() {
        for start in (0..segment.n_tokens).step_by(tile_tokens) {
            for kv_head in 0..heads.n_kv_heads {
                items.push(Item {
                    row: segment.row,
                    first_token: segment.first_token + start,
                    n_tokens: tile_tokens.min(segment.n_tokens - start),
                    first_position: segment.first_position + start,
                    kv_head,
                });
            }
        }
    }
    // The longest first: what is left at the end is short.
    items.sort_by_key(|item| std::cmp::Reverse(item.first_position + item.n_tokens));
    items
}

/// Multiply-adds of all items: scores and weighted values.
fn cost(items: &[Item], heads: &HeadShape) -> usize {
    let group = heads.n_heads / heads.n_kv_heads;
    let pairs = |item: &Item| item.n_tokens * (item.first_position + item.n_tokens);
    2 * group * heads.head_dim * items.iter().map(pairs).sum::<usize>()
}

/// Buffers of one thread; heads are padded with zeros to whole vectors.
#[derive(Default)]
struct Workspace {
    /// Scaled queries, `[queries, width]`.
    q: Vec<f32>,
    /// Keys and values of a block, `[BLOCK, width]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Scores, then weights, `[queries, BLOCK]`.
    scores: Vec<f32>,
    /// Weighted sums of values, `[queries, width]`.
    acc: Vec<f32>,
    /// Running maximum and sum of each query.
    max_sum: Vec<(f32, f32)>,
}

impl Workspace {
    fn reset(&mut self, queries: usize, width: usize) {
        let fill = |v: &mut Vec<f32>, len| {
            v.clear();
            v.resize(len, 0.0);
        };
        fill(&mut self.q, queries * width);
        fill(&mut self.keys, BLOCK * width);
        fill(&mut self.values, BLOCK * width);
        fill(&mut self.scores, queries * BLOCK);
        fill(&mut self.acc, queries * width);
        self.max_sum.clear();
        self.max_sum.resize(queries, (f32::NEG_INFINITY, 0.0));
    }
}

struct Tile<'a, E> {
    item: Item,
    heads: &'a HeadShape,
    q: &'a Tensor,
    /// `[n_slots, 2, n_kv_heads, head_dim]`.
    kv: &'a [E],
    table: &'a PageTable,
    out: Shared<'a, f32>,
    work: &'a mut Workspace,
}

impl<E: Element> Kernel for Tile<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(mut self) {
        let group = self.heads.n_heads / self.heads.n_kv_heads;
        let queries = self.item.n_tokens * group;
        let width = self.heads.head_dim.next_multiple_of(LANES);
        self.work.reset(queries, width);
        self.load_queries(group, width);
        let last = self.item.first_position + self.item.n_tokens - 1;
        let first_seen = self.first_seen(self.item.first_position);
        for block in first_seen / BLOCK..=last / BLOCK {
            let start = block * BLOCK;
            self.load_block::<S>(
                first_seen.max(start)..(last + 1).min(start + BLOCK),
                start,
                width,
            );
            self.score::<S>(queries, width);
            for query in 0..queries {
                let position = self.item.first_position + query / group;
                let seen = self.first_seen(position).max(start)..(position + 1).min(start + BLOCK);
                if !seen.is_empty() {
                    self.fold::<S>(query, seen.start - start..seen.end - start, width);
                }
            }
        }
        self.write_out(group, width);
    }
}

impl<E: Element> Tile<'_, E> {
    /// First position that the query at `position` sees.
    #[inline(always)]
    fn first_seen(&self, position: usize) -> usize {
        self.heads
            .window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    #[inline(always)]
    fn load_queries(&mut self, group: usize, width: usize) {
        let head_dim = self.heads.head_dim;
        for token in 0..self.item.n_tokens {
            let row = self.q.row(self.item.first_token + token);
            for g in 0..group {
                let head = self.item.kv_head * group + g;
                let out = &mut self.work.q[(token * group + g) * width..][..head_dim];
                for (out, q) in out
                    .iter_mut()
                    .zip(&row[head * head_dim..(head + 1) * head_dim])
                {
                    *out = q * self.heads.scale;
                }
            }
        }
    }

    /// Widens the keys and values at `positions`, which lie in the block that begins at `start`.
    #[inline(always)]
    fn load_block<S: Lanes>(
        &mut self,
        positions: std::ops::Range<usize>,
        start: usize,
        width: usize,
    ) {
        let head_dim = self.heads.head_dim;
        for position in positions {
            let slot = self.table.slot(self.item.row, position);
            let to = (position - start) * width;
            for (half, block) in [&mut self.work.keys, &mut self.work.values]
                .into_iter()
                .enumerate()
            {
                let from =
                    ((slot * 2 + half) * self.heads.n_kv_heads + self.item.kv_head) * head_dim;
                let (head, out) = (&self.kv[from..from + head_dim], &mut block[to..to + width]);
                for (head, out) in head.chunks(LANES).zip(out.chunks_exact_mut(LANES)) {
                    // SAFETY: `out` holds sixteen values, `head` as many or its length is passed; `dispatch`
                    // detected the instruction set.
                    unsafe {
                        let v = match head.len() {
                            LANES => E::load::<S>(head.as_ptr()),
                            len => E::load_part::<S>(head.as_ptr(), len),
                        };
                        S::store(out.as_mut_ptr(), v);
                    }
                }
            }
        }
    }

    /// Scores all queries against all keys of the block, also those that a query does not see.
    #[inline(always)]
    fn score<S: Lanes>(&mut self, queries: usize, width: usize) {
        let full = queries / 4 * 4;
        for query in (0..full).step_by(4) {
            for key in (0..BLOCK).step_by(4) {
                self.score_tile::<S, 4>(query, key, width);
            }
        }
        for query in full..queries {
            for key in (0..BLOCK).step_by(4) {
                self.score_tile::<S, 1>(query, key, width);
            }
        }
    }

    #[inline(always)]
    fn score_tile<S: Lanes, const M: usize>(&mut self, query: usize, key: usize, width: usize) {
        let q = &self.work.q[query * width..(query + M) * width];
        let keys = &self.work.keys[key * width..(key + 4) * width];
        // SAFETY: the slices hold M and 4 rows of `width` values; `dispatch` detected the instruction set.
        let sums = unsafe { dot_tile::<S, f32, M, 4>(q.as_ptr(), keys.as_ptr(), width) };
        for (m, sums) in sums.iter().enumerate() {
            self.work.scores[(query + m) * BLOCK + key..][..4].copy_from_slice(sums);
        }
    }

    /// Folds the keys `seen` of the block into a query's running softmax.
    #[inline(always)]
    fn fold<S: Lanes>(&mut self, query: usize, seen: std::ops::Range<usize>, width: usize) {
        let Workspace {
            values,
            scores,
            acc,
            max_sum,
            ..
        } = &mut *self.work;
        let scores = &mut scores[query * BLOCK..(query + 1) * BLOCK];
        let acc = &mut acc[query * width..(query + 1) * width];
        scores[..seen.start].fill(f32::NEG_INFINITY);
        scores[seen.end..].fill(f32::NEG_INFINITY);
        let (old_max, old_sum) = max_sum[query];
        // SAFETY: all slices are whole vectors long; `dispatch` detected the instruction set.
        unsafe {
            let (low, high) = (
                S::load(scores.as_ptr()),
                S::load(scores.as_ptr().add(LANES)),
            );
            let max = old_max.max(S::max_lane(S::max(low, high)));
            let shift = S::splat(max);
            S::store(scores.as_mut_ptr(), S::exp(S::sub(low, shift)));
            S::store(scores.as_mut_ptr().add(LANES), S::exp(S::sub(high, shift)));
            // `exp` clamps: what is not seen must weigh exactly nothing.
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            let weights = S::add(
                S::load(scores.as_ptr()),
                S::load(scores.as_ptr().add(LANES)),
            );
            let decay = if old_sum == 0.0 {
                0.0
            } else {
                S::sum(S::exp(S::splat(old_max - max))) / LANES as f32
            };
            max_sum[query] = (max, old_sum * decay + S::sum(weights));
            for first in (0..width).step_by(8 * LANES) {
                match (width - first) / LANES {
                    1 => {
                        add_weighted::<S, 1>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                    2 => {
                        add_weighted::<S, 2>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                    3 => {
                        add_weighted::<S, 3>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                    4 => {
                        add_weighted::<S, 4>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                    5 => {
                        add_weighted::<S, 5>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                    6 => {
                        add_weighted::<S, 6>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                    7 => {
                        add_weighted::<S, 7>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                    _ => {
                        add_weighted::<S, 8>(acc, values, scores, first, seen.clone(), width, decay)
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn write_out(&mut self, group: usize, width: usize) {
        let head_dim = self.heads.head_dim;
        for token in 0..self.item.n_tokens {
            for g in 0..group {
                let query = token * group + g;
                let head = self.item.kv_head * group + g;
                let start =
                    ((self.item.first_token + token) * self.heads.n_heads + head) * head_dim;
                // SAFETY: each (token, head) belongs to one item.
                let out = unsafe { self.out.part(start, head_dim) };
                let sum = self.work.max_sum[query].1;
                for (out, acc) in out.iter_mut().zip(&self.work.acc[query * width..]) {
                    *out = acc / sum;
                }
            }
        }
    }
}

/// `acc = acc * decay + sum of weights[t] * values[t]`, in ascending t, for N vectors from column `first` on.
///
/// # Safety
/// `acc` holds `first + 16 N` values, `values` whole rows of `width` up to `keys.end`; the instruction set of `S` was
/// detected.
#[inline(always)]
unsafe fn add_weighted<S: Lanes, const N: usize>(
    acc: &mut [f32],
    values: &[f32],
    weights: &[f32],
    first: usize,
    keys: std::ops::Range<usize>,
    width: usize,
    decay: f32,
) {
    debug_assert!(first + N * LANES <= acc.len() && keys.end * width <= values.len());
    // SAFETY: the caller's promise, checked in debug builds.
    unsafe {
        let at = acc.as_mut_ptr().wrapping_add(first);
        let mut sums = [S::splat(0.0); N];
        for n in 0..N {
            sums[n] = S::mul(S::load(at.wrapping_add(n * LANES)), S::splat(decay));
        }
        for key in keys {
            let weight = S::splat(weights[key]);
            let row = values.as_ptr().wrapping_add(key * width + first);
            for n in 0..N {
                sums[n] = S::mul_add(weight, S::load(row.wrapping_add(n * LANES)), sums[n]);
            }
        }
        for n in 0..N {
            S::store(at.wrapping_add(n * LANES), sums[n]);
        }
    }
}

/// Dot products of M rows of `x` with N rows of `w`, all of `k` values and contiguous.
///
/// # Safety
/// `x` is valid for `M * k` values, `w` for `N * k`; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn dot_tile<S: Lanes, E: Element, const M: usize, const N: usize>(
    x: *const f32,
    w: *const E,
    k: usize,
) -> [[f32; N]; M] {
    // SAFETY: all offsets stay below M * k and N * k.
    unsafe {
        // `wrapping_add`: plain offsets are checked in debug builds, at twice the price of the products.
        let mut rows = [x; M];
        for m in 1..M {
            rows[m] = rows[m - 1].wrapping_add(k);
        }
        let mut columns = [w; N];
        for n in 1..N {
            columns[n] = columns[n - 1].wrapping_add(k);
        }
        let mut acc = [[S::splat(0.0); N]; M];
        let whole = k / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            let mut weights = [S::splat(0.0); N];
            for n in 0..N {
                weights[n] = E::load::<S>(columns[n].wrapping_add(i));
            }
            for m in 0..M {
                let row = S::load(rows[m].wrapping_add(i));
                for n in 0..N {
                    acc[m][n] = S::mul_add(row, weights[n], acc[m][n]);
                }
            }
        }
        if whole < k {
            for m in 0..M {
                let row = f32::load_part::<S>(rows[m].wrapping_add(whole), k - whole);
                for n in 0..N {
                    let weight = E::load_part::<S>(columns[n].wrapping_add(whole), k - whole);
                    acc[m][n] = S::mul_add(row, weight, acc[m][n]);
                }
            }
        }
        let mut sums = [[0f32; N]; M];
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = S::sum(acc[m][n]);
            }
        }
        sums
    }
}
