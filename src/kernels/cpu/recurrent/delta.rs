//! The gated delta rule (linear attention): a head's state matrix decays, then maps a token's key nearer to its value.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::drafts::{DraftInputs, DraftLog};
use super::pool::{StatePool, States};
use crate::cpu::batch::{CpuBatch, StateRow};
use crate::cpu::element::{load_up_to, store_up_to};
use crate::cpu::nodes::{PerNode, locate};
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::recurrent::DeltaNetShape;
use souffleur_base::ids::StateSlot;

/// Column blocks of an item: keys and queries are read once for all of them, their sums are independent chains, and the
/// blocks stay in L1 for all tokens.
const ITEM_BLOCKS: usize = 2;
/// Approximate cost per matrix element and token, in multiply-adds.
const ELEMENT_COST: usize = 5;

/// Elements of the blocks of an item with the longest keys.
const MAX_ITEM_ELEMENTS: usize = ITEM_BLOCKS * LANES * 1024;

const _: () = assert!(DeltaNetShape::COLUMNS == LANES);

/// Updates the matrices of all rows, each head's on its own NUMA node; first with the drafts that they owe. `mixed` holds
/// queries, keys and values, `rates` decays and betas.
pub fn run(
    (pool, isa): (&mut ThreadPool, Isa),
    shape: &DeltaNetShape,
    (mixed, rates): (&Tensor, &Tensor),
    (states, layer): (&mut StatePool, usize),
    batch: &CpuBatch,
    mut out: Tensor,
) -> Tensor {
    let (states, log) = states.layer(layer);
    let log: &DraftLog = log;
    let rule = DeltaRule {
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
            let row = rows.rows[row];
            let item = Item::new(shape, own.start + head, run);
            rule.item(isa, states, (row, log.owed(row.live)), &item);
        });
    }
    out
}

/// Adds drafts to the matrices in a slot, as [`run`] does with tokens.
pub fn add_drafts(
    (pool, isa): (&mut ThreadPool, Isa),
    shape: &DeltaNetShape,
    states: States<'_>,
    (drafts, slot): (DraftInputs<'_>, StateSlot),
) {
    let n_runs = shape.blocks().div_ceil(ITEM_BLOCKS);
    let owned = pool.nodes().heads(shape.value_heads);
    let node_items: PerNode<usize> = owned.iter().map(|own| own.len() * n_runs).collect();
    let cost = drafts.len() * shape.matrix_elements() * ELEMENT_COST;
    pool.for_each_by_node(&node_items, cost, &|index| {
        let (node, item) = locate(&node_items, index);
        let head = owned[node].start + item / n_runs;
        let item = Item::new(shape, head, item % n_runs);
        // SAFETY: each item has its own blocks.
        let state = unsafe { states.part(slot, item.first, item.len) };
        item.run(isa, Source::Drafts(drafts), state, 0..drafts.len());
    });
}

struct Rows<'a> {
    rows: smallvec::SmallVec<[StateRow<'a>; 64]>,
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
                .map(|row: &StateRow<'_>| row.segment.n_tokens)
                .sum();
            (!rows.is_empty()).then_some(Self { rows, n_tokens })
        })
    }
}

struct DeltaRule<'a> {
    mixed: &'a Tensor,
    rates: &'a Tensor,
    out: Shared<'a, f32>,
}

impl DeltaRule<'_> {
    /// Runs some blocks of a head's matrix over owed drafts and the row's tokens, and copies them to the saved states.
    fn item(
        &self,
        isa: Isa,
        states: States<'_>,
        (row, owed): (StateRow<'_>, DraftInputs<'_>),
        item: &Item<'_>,
    ) {
        let segment = row.segment;
        // SAFETY: each row has its own live slot, and each item its own blocks.
        let state = unsafe { states.part(row.live, item.first, item.len) };
        if !owed.is_empty() {
            item.run(isa, Source::Drafts(owed), state, 0..owed.len());
        }
        let mut done = 0;
        let ends = row.saves.iter().map(|save| {
            let end_token = save.position as usize - segment.first_position;
            (end_token, Some(save.slot))
        });
        for (end, slot) in ends.chain([(row.n_certain(), None)]) {
            let tokens = segment.first_token + done..segment.first_token + end;
            item.run(isa, Source::Step(self), state, tokens);
            if let Some(slot) = slot {
                // SAFETY: each saved slot belongs to one row and is written once.
                unsafe { states.part(slot, item.first, item.len) }.copy_from_slice(state);
            }
            done = end;
        }
        if row.n_drafts > 0 {
            let tokens = segment.first_token + done..segment.first_token + segment.n_tokens;
            self.run_drafts(isa, item, state, tokens);
        }
    }

    /// Runs the blocks over drafts without a change of the state.
    // The copy takes stack memory that other items do not need.
    #[inline(never)]
    fn run_drafts(&self, isa: Isa, item: &Item<'_>, state: &[f32], tokens: Range<usize>) {
        assert!(
            state.len() <= MAX_ITEM_ELEMENTS,
            "two blocks are {} elements, expected at most {MAX_ITEM_ELEMENTS}",
            state.len()
        );
        let mut copy = ItemCopy([const { MaybeUninit::uninit() }; MAX_ITEM_ELEMENTS]);
        let start = copy.0.as_mut_ptr().cast::<f32>();
        // SAFETY: `copy` is at least as long as `state`, and overlaps with nothing; the elements of the slice were just
        // written, and only the slice uses them.
        let copy = unsafe {
            start.copy_from_nonoverlapping(state.as_ptr(), state.len());
            std::slice::from_raw_parts_mut(start, state.len())
        };
        item.run(isa, Source::Step(self), copy, tokens);
    }
}

/// Memory for a copy of an item's blocks, whose rows are whole cache lines.
#[repr(align(64))]
struct ItemCopy([MaybeUninit<f32>; MAX_ITEM_ELEMENTS]);

/// Some blocks of a head's matrix.
struct Item<'a> {
    shape: &'a DeltaNetShape,
    head: usize,
    /// One or [`ITEM_BLOCKS`].
    n_blocks: usize,
    first_column: usize,
    n_columns: usize,
    /// The blocks' elements in a state.
    first: usize,
    len: usize,
}

impl<'a> Item<'a> {
    /// `run` is the index of the head's group of [`ITEM_BLOCKS`] blocks.
    fn new(shape: &'a DeltaNetShape, head: usize, run: usize) -> Self {
        let first_block = run * ITEM_BLOCKS;
        let n_blocks = ITEM_BLOCKS.min(shape.blocks() - first_block);
        let first_column = first_block * LANES;
        let end_column = shape.value_dim.min(first_column + n_blocks * LANES);
        let block = shape.block_elements();
        Self {
            shape,
            head,
            n_blocks,
            first_column,
            n_columns: end_column - first_column,
            first: (head * shape.blocks() + first_block) * block,
            len: n_blocks * block,
        }
    }

    /// Runs the blocks over tokens.
    fn run(&self, isa: Isa, source: Source<'_>, state: &mut [f32], tokens: Range<usize>) {
        let chunk = Chunk {
            item: self,
            source,
            state,
            tokens,
        };
        match self.n_blocks {
            ITEM_BLOCKS => dispatch(isa, Blocks::<ITEM_BLOCKS>(chunk)),
            _ => dispatch(isa, Blocks::<1>(chunk)),
        }
    }
}

/// Where tokens are.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// In the step; their outputs are written.
    Step(&'a DeltaRule<'a>),
    /// In the log: their outputs are known, and queries are not read.
    Drafts(DraftInputs<'a>),
}

/// The parts of a token's inputs that an item reads.
struct TokenInputs<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    beta: f32,
}

impl<'a> Source<'a> {
    #[inline(always)]
    fn token(&self, item: &Item<'_>, token: usize) -> TokenInputs<'a> {
        let shape = item.shape;
        let (queries, key_values, rates) = match *self {
            Self::Step(rule) => {
                let (queries, key_values) = rule.mixed.row(token).split_at(shape.keys());
                (queries, key_values, rule.rates.row(token))
            }
            Self::Drafts(drafts) => {
                let key_values = drafts.key_values(shape, token);
                (key_values, key_values, drafts.rates(shape, token))
            }
        };
        let key = shape.key_head(item.head) * shape.key_dim;
        let value = shape.keys() + item.head * shape.value_dim + item.first_column;
        TokenInputs {
            q: &queries[key..][..shape.key_dim],
            k: &key_values[key..][..shape.key_dim],
            v: &key_values[value..][..item.n_columns],
            decay: rates[item.head],
            beta: rates[shape.value_heads + item.head],
        }
    }
}

struct Chunk<'a> {
    item: &'a Item<'a>,
    source: Source<'a>,
    /// Each block is `[key_dim, 16]`.
    state: &'a mut [f32],
    /// Indices in the source.
    tokens: Range<usize>,
}

struct Blocks<'a, const N: usize>(Chunk<'a>);

impl<const N: usize> Kernel for Blocks<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Chunk {
            item,
            source,
            state,
            tokens,
        } = self.0;
        let shape = item.shape;
        let block = shape.block_elements();
        assert_eq!(state.len(), N * block, "the state must have {N} blocks");
        let first_output = item.head * shape.value_dim + item.first_column;
        let mut unused = [0.0; ITEM_BLOCKS * LANES];
        let state = state.as_mut_ptr();
        let mut pending: Option<PendingUpdate<'_, S, N>> = None;
        let end = tokens.end;
        for token in tokens {
            if token + 1 < end {
                let next = source.token(item, token + 1);
                fetch::<S>(next.q);
                fetch::<S>(next.k);
                fetch::<S>(next.v);
            }
            let TokenInputs {
                q,
                k,
                v,
                decay,
                beta,
            } = source.token(item, token);
            let out = match source {
                // SAFETY: each item has its own columns of tokens.
                Source::Step(rule) => unsafe {
                    let first = token * shape.values() + first_output;
                    rule.out.part(first, item.n_columns)
                },
                Source::Drafts(_) => &mut unused[..item.n_columns],
            };
            // SAFETY: `state` holds `N` blocks of `key_dim` rows, `q` and `k` have `key_dim` elements, `load_up_to` and
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
