//! The gated delta rule (linear attention): a head's state matrix decays, then maps a token's key nearer to its value.

use std::ops::Range;

use super::pool::{StatePool, States};
use crate::cpu::batch::{CpuBatch, Segment};
use crate::cpu::element::{load_up_to, store_up_to};
use crate::cpu::nodes::{PerNode, locate};
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::recurrent::DeltaNetShape;
use souffleur_base::ids::StateSlot;
use souffleur_base::row_state::StateSave;

/// Column blocks of an item: keys and queries are read once for all of them, their sums are independent chains, and the
/// blocks stay in L1 for all tokens.
const ITEM_BLOCKS: usize = 2;
/// Approximate cost per matrix element and token, in multiply-adds.
const ELEMENT_COST: usize = 5;

const _: () = assert!(DeltaNetShape::COLUMNS == LANES);

/// Updates the matrices of all rows, each head's on its own NUMA node. `mixed` holds queries, keys and values, `rates`
/// decays and betas.
pub fn run(
    (pool, isa): (&mut ThreadPool, Isa),
    shape: &DeltaNetShape,
    (mixed, rates): (&Tensor, &Tensor),
    (states, layer): (&mut StatePool, usize),
    batch: &CpuBatch,
    mut out: Tensor,
) -> Tensor {
    let states = states.layer(layer);
    let rule = DeltaRule {
        shape,
        mixed,
        rates,
        out: Shared::new(out.values_mut()),
    };
    let n_runs = shape.blocks().div_ceil(ITEM_BLOCKS);
    let owned = pool.nodes().heads(shape.value_heads);
    for rows in Rows::of(batch) {
        let cost = rows.n_tokens * shape.matrix_elements() * ELEMENT_COST;
        let items = owned.iter().map(|own| rows.rows.len() * own.len() * n_runs);
        let node_items: PerNode<usize> = items.collect();
        pool.for_each_by_node(&node_items, cost, &|index| {
            let (node, item) = locate(&node_items, index);
            let (own, run) = (&owned[node], item % n_runs);
            let (row, head) = (item / n_runs / own.len(), item / n_runs % own.len());
            let (segment, live, saves) = rows.rows[row];
            let head = own.start + head;
            let first = run * ITEM_BLOCKS;
            let blocks = first..shape.blocks().min(first + ITEM_BLOCKS);
            rule.item(isa, states, (segment, live, saves), head, blocks);
        });
    }
    out
}

struct Rows<'a> {
    rows: smallvec::SmallVec<[(&'a Segment, StateSlot, &'a [StateSave]); 64]>,
    n_tokens: usize,
}

impl<'a> Rows<'a> {
    /// All rows of a batch, in portions that fit on the stack.
    fn of(batch: &'a CpuBatch) -> impl Iterator<Item = Self> {
        let mut rows = batch.with_states();
        std::iter::from_fn(move || {
            let rows: smallvec::SmallVec<_> = rows.by_ref().take(64).collect();
            let n_tokens = rows
                .iter()
                .map(|row: &(&Segment, StateSlot, &[StateSave])| row.0.n_tokens)
                .sum();
            (!rows.is_empty()).then_some(Self { rows, n_tokens })
        })
    }
}

struct DeltaRule<'a> {
    shape: &'a DeltaNetShape,
    mixed: &'a Tensor,
    rates: &'a Tensor,
    out: Shared<'a, f32>,
}

impl DeltaRule<'_> {
    /// Runs some blocks of a head's matrix over the tokens of a row, and copies them to the saved states.
    fn item(
        &self,
        isa: Isa,
        states: States<'_>,
        (segment, live, saves): (&Segment, StateSlot, &[StateSave]),
        head: usize,
        blocks: Range<usize>,
    ) {
        let block = self.shape.block_elements();
        let first = (head * self.shape.blocks() + blocks.start) * block;
        let len = blocks.len() * block;
        // SAFETY: each row has its own live slot, and each item its own blocks.
        let state = unsafe { states.part(live, first, len) };
        let mut done = 0;
        let ends = saves.iter().map(|save| {
            let end_token = save.position as usize - segment.first_position;
            (end_token, Some(save.slot))
        });
        for (end, slot) in ends.chain([(segment.n_tokens, None)]) {
            let tokens = segment.first_token + done..segment.first_token + end;
            let chunk = Chunk {
                rule: self,
                state: &mut *state,
                head,
                first_column: blocks.start * LANES,
                tokens,
            };
            match blocks.len() {
                ITEM_BLOCKS => dispatch(isa, Blocks::<ITEM_BLOCKS>(chunk)),
                _ => dispatch(isa, Blocks::<1>(chunk)),
            }
            if let Some(slot) = slot {
                // SAFETY: each saved slot belongs to one row and is written once.
                unsafe { states.part(slot, first, len) }.copy_from_slice(state);
            }
            done = end;
        }
    }
}

struct Chunk<'a> {
    rule: &'a DeltaRule<'a>,
    /// Each block is `[key_dim, 16]`.
    state: &'a mut [f32],
    head: usize,
    first_column: usize,
    /// Indices in the step.
    tokens: Range<usize>,
}

struct Blocks<'a, const N: usize>(Chunk<'a>);

impl<const N: usize> Kernel for Blocks<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Chunk {
            rule,
            state,
            head,
            first_column,
            tokens,
        } = self.0;
        let shape = rule.shape;
        let (dim, block) = (shape.key_dim, shape.block_elements());
        assert_eq!(state.len(), N * block, "the state must have {N} blocks");
        let key = shape.keys() + shape.key_head(head) * dim;
        let query = shape.key_head(head) * dim;
        let value = 2 * shape.keys() + head * shape.value_dim;
        let end_column = shape.value_dim.min(first_column + N * LANES);
        let n_columns = end_column - first_column;
        let state = state.as_mut_ptr();
        let mut pending: Option<PendingUpdate<'_, S, N>> = None;
        let end = tokens.end;
        for token in tokens {
            let row = rule.mixed.row(token);
            if token + 1 < end {
                let next = rule.mixed.row(token + 1);
                fetch::<S>(&next[query..][..dim]);
                fetch::<S>(&next[key..][..dim]);
                fetch::<S>(&next[value + first_column..][..n_columns]);
            }
            let (q, k) = (&row[query..][..dim], &row[key..][..dim]);
            let v = &row[value + first_column..][..n_columns];
            let rates = rule.rates.row(token);
            let (decay, beta) = (rates[head], rates[shape.value_heads + head]);
            let out = token * shape.values() + head * shape.value_dim + first_column;
            // SAFETY: each item has its own columns of tokens.
            let out = unsafe { rule.out.part(out, n_columns) };
            // SAFETY: `state` holds `N` blocks of `dim` rows, `q` and `k` have `dim` elements, `load_up_to` and
            // `store_up_to` stay within their slices; `dispatch` detected the instruction set.
            unsafe {
                let products = match &pending {
                    Some(pending) => update_and_read::<S, N>(state, block, pending, (k, q)),
                    None => read::<S, N>(state, block, (k, q)),
                };
                let (decay, beta) = (S::splat(decay), S::splat(beta));
                let key_query = S::splat(product::<S>(k, q));
                let mut change = [S::splat(0.0); N];
                for (n, v) in v.chunks(LANES).enumerate() {
                    let error = S::sub(load_up_to::<S>(v), S::mul(products[n].by_key, decay));
                    change[n] = S::mul(error, beta);
                }
                for (n, out) in out.chunks_mut(LANES).enumerate() {
                    let decayed = S::mul(products[n].by_query, decay);
                    store_up_to::<S>(S::mul_add(change[n], key_query, decayed), out);
                }
                pending = Some(PendingUpdate { k, decay, change });
            }
        }
        if let Some(pending) = pending {
            // SAFETY: as above.
            unsafe { update::<S, N>(state, block, &pending) };
        }
    }
}

/// Prefetches a part of the next token's row: rows are too far apart for the hardware prefetcher.
#[inline(always)]
fn fetch<S: Lanes>(part: &[f32]) {
    for line in part.chunks(LANES) {
        // SAFETY: only a hint; the kernel's caller detected the instruction set.
        unsafe { S::prefetch(line.as_ptr()) };
    }
}

/// A token's pending update of `N` blocks, applied when the next token reads them, so that blocks are loaded once per
/// token.
struct PendingUpdate<'a, S: Lanes, const N: usize> {
    k: &'a [f32],
    decay: S::V,
    change: [S::V; N],
}

impl<S: Lanes, const N: usize> PendingUpdate<'_, S, N> {
    /// Applies the update to a `row` of block `n`; `k` is the element of the key for that row.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn applied(&self, n: usize, k: S::V, row: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::mul_add(k, self.change[n], S::mul(row, self.decay)) }
    }
}

/// The products of a block's columns with a key and a query, both summed by ascending row. A token's output is computed
/// from them: `S^T q`, decayed, plus the update times the product of key and query.
#[derive(Clone, Copy)]
struct Products<S: Lanes> {
    by_key: S::V,
    by_query: S::V,
}

impl<S: Lanes> Products<S> {
    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn none() -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            Self {
                by_key: S::splat(0.0),
                by_query: S::splat(0.0),
            }
        }
    }

    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn add(&mut self, row: S::V, k: S::V, q: S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.by_key = S::mul_add(row, k, self.by_key);
            self.by_query = S::mul_add(row, q, self.by_query);
        }
    }
}

/// # Safety
/// `state` holds `N` blocks with as many rows as `k` and `q` have elements; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn read<S: Lanes, const N: usize>(
    state: *const f32,
    block: usize,
    (k, q): (&[f32], &[f32]),
) -> [Products<S>; N] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut products = [Products::none(); N];
        for (i, (k, q)) in k.iter().zip(q).enumerate() {
            let (k, q) = (S::splat_at(k), S::splat_at(q));
            for (n, products) in products.iter_mut().enumerate() {
                let row = S::load(state.wrapping_add(n * block + i * LANES));
                products.add(row, k, q);
            }
        }
        products
    }
}

/// Applies the pending update to the blocks, and multiplies the result with `k` and `q`.
///
/// # Safety
/// As [`read`], and `pending.k` has as many elements.
#[inline(always)]
unsafe fn update_and_read<S: Lanes, const N: usize>(
    state: *mut f32,
    block: usize,
    pending: &PendingUpdate<'_, S, N>,
    (k, q): (&[f32], &[f32]),
) -> [Products<S>; N] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut products = [Products::none(); N];
        for (i, (old_k, (k, q))) in pending.k.iter().zip(k.iter().zip(q)).enumerate() {
            let old_k = S::splat_at(old_k);
            let (k, q) = (S::splat_at(k), S::splat_at(q));
            for (n, products) in products.iter_mut().enumerate() {
                let at = state.wrapping_add(n * block + i * LANES);
                let row = pending.applied(n, old_k, S::load(at));
                S::store(at, row);
                products.add(row, k, q);
            }
        }
        products
    }
}

/// # Safety
/// As [`update_and_read`].
#[inline(always)]
unsafe fn update<S: Lanes, const N: usize>(
    state: *mut f32,
    block: usize,
    pending: &PendingUpdate<'_, S, N>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (i, k) in pending.k.iter().enumerate() {
            let k = S::splat_at(k);
            for n in 0..N {
                let at = state.wrapping_add(n * block + i * LANES);
                S::store(at, pending.applied(n, k, S::load(at)));
            }
        }
    }
}

/// The dot product of two vectors of equal length: each lane sums ascending elements, then lanes are added.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn product<S: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    // SAFETY: guaranteed by the caller; `load_up_to` stays within its slice.
    unsafe {
        let mut sum = S::splat(0.0);
        for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
            sum = S::mul_add(load_up_to::<S>(a), load_up_to::<S>(b), sum);
        }
        S::sum(sum)
    }
}
