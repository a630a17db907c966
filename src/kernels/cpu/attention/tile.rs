//! Execution of one attention work item: the queries of a tile against some key heads and spans.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::bf16;

use super::super::kv::PageTable;
use super::super::planes::Planes;
use super::super::simd::{Kernel, Lanes};
use super::super::tensor::{Shared, Tensor};
use super::direct::{Direct, Fetch, MAX_DIRECT_ROWS};
use super::kv_element::KvElement;
use super::pack::{Ahead, Packing};
use super::plan::{AttentionPlan, Item, QueryToken, Tile};
use super::seen::{BLOCK, KeyRange, SPAN};
use super::sizes::Sizes;
use super::space::Workspace;
use super::state::clear;
use crate::HeadShape;

/// Operands of a step's attention in one layer.
#[derive(Clone, Copy)]
pub struct Step<'a, F> {
    pub heads: &'a HeadShape,
    /// Scores without a value (attention sinks), one for each query head.
    pub sinks: Option<&'a [f32]>,
    pub planes: Planes,
    pub q: &'a Tensor,
    /// Elements in the layout of `planes`, and their scales if they are int8.
    pub kv: &'a [F],
    pub scales: &'a [bf16],
    pub table: &'a PageTable,
    pub plan: &'a AttentionPlan,
    /// Records passed from round to round, and those of spans that are merged at the end.
    pub states: Shared<'a, f32>,
    pub out: Shared<'a, f32>,
}

impl<F> Step<'_, F> {
    /// The sink of a query head, as a logarithm to base 2.
    pub fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks[head] * LOG2_E)
    }
}

pub struct Work<'a, F> {
    pub step: Step<'a, F>,
    pub item: &'a Item,
    pub space: &'a mut Workspace,
}

/// Tiles with fewer queries do not cache their packed blocks: another tile of the same head rarely follows.
const MIN_CACHING_ROWS: usize = 96;

/// The slots of a block; the dummy slot replaces those that the tile does not see.
#[derive(Clone, Copy)]
struct Slots<F> {
    /// Pointers to the slots in the first head's plane of keys.
    starts: [*const F; BLOCK],
    /// Slot indices, to look up scales.
    indices: [u32; BLOCK],
}

fn is_contiguous<F>(slots: &Slots<F>, planes: Planes) -> bool {
    slots.starts[BLOCK - 1] == slots.starts[0].wrapping_add(planes.slot(BLOCK - 1))
}

impl<F: KvElement> Kernel for Work<'_, F> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Lanes>(mut self) -> usize {
        let sizes = Sizes::of::<F>(self.step.heads, self.tokens().len());
        self.load_queries::<S>(sizes);
        self.load_totals(sizes);
        let keys = self.keys();
        let blocks = keys.start / BLOCK..keys.end.div_ceil(BLOCK);
        let mut slots = self.slots(blocks.start);
        for block in blocks.clone() {
            let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
            if start.is_multiple_of(SPAN) || block == blocks.start {
                let len = self.n_records(sizes) * sizes.record;
                self.space.span[..len]
                    .chunks_exact_mut(sizes.record)
                    .for_each(clear);
            }
            let is_last = block + 1 == blocks.end;
            let next = if is_last {
                slots
            } else {
                self.slots(block + 1)
            };
            let loaded = KeyRange::new(keys.clone(), start);
            self.mark_seen(sizes, start);
            // The hardware prefetches contiguous slots.
            let scattered = if is_last || is_contiguous(&next, self.step.planes) {
                &next.starts[..0]
            } else {
                &next.starts[..]
            };
            for head in 0..self.item.heads.len() {
                self.load_scales(sizes, &slots.indices, head);
                if self.is_direct(sizes) {
                    let following = match head + 1 < self.item.heads.len() {
                        true => Some((&slots, head + 1)),
                        false if is_last => None,
                        false => Some((&next, 0)),
                    };
                    self.attend_direct::<S>(sizes, (&slots.starts, head), loaded, following);
                    continue;
                }
                let slots = (&slots.starts, scattered);
                let entry = self.pack_block::<S>(sizes, (block, head), slots, loaded);
                self.attend_block::<S>(sizes, head, entry, loaded);
            }
            if is_last || end.is_multiple_of(SPAN) {
                self.close_span::<S>(sizes, start / SPAN);
            }
            slots = next;
        }
        self.store_results::<S>(sizes);
        let planes = self.step.planes;
        let head_bytes =
            planes.head_elements() * size_of::<F>() + planes.n_scales() * size_of::<bf16>();
        keys.len() * self.item.heads.len() * head_bytes
    }
}

impl<F: KvElement> Work<'_, F> {
    pub fn tile(&self) -> &Tile {
        &self.step.plan.tiles[self.item.tile as usize]
    }

    pub fn tokens(&self) -> &[QueryToken] {
        self.step.plan.tokens_of(self.tile())
    }

    fn keys(&self) -> Range<usize> {
        let (tile, spans) = (self.tile(), &self.item.spans);
        tile.keys.start.max(spans.start * SPAN)..tile.keys.end.min(spans.end * SPAN)
    }

    fn slots(&self, block: usize) -> Slots<F> {
        let keys = self.keys();
        let planes = self.step.planes;
        let n_slots = planes.n_slots();
        let mut slots = Slots {
            starts: [self.step.kv.as_ptr(); BLOCK],
            indices: [0; BLOCK],
        };
        let start = block * BLOCK;
        let seen = keys.start.max(start)..keys.end.min(start + BLOCK);
        let kv = self.step.kv.as_ptr();
        self.step
            .table
            .for_slots(self.tile().row, seen, |position, slot| {
                assert!(
                    slot < n_slots,
                    "slot {slot} is outside the KV pool of {n_slots} slots"
                );
                slots.starts[position - start] = kv.wrapping_add(planes.slot(slot));
                slots.indices[position - start] = slot as u32;
            });
        slots
    }

    fn ahead<'s>(&self, slots: &'s [*const F], head: usize) -> Ahead<'s, F> {
        let (key, value) = self.planes(head);
        let heads = self.step.heads;
        Ahead {
            slots,
            byte: 0,
            start: key * size_of::<F>(),
            to_values: (value - key) * size_of::<F>(),
            key_bytes: heads.key_dim * size_of::<F>(),
            value_bytes: heads.values.stored_dim() * size_of::<F>(),
        }
    }

    /// Offsets of the key and value planes of the item's head number `head`, from the first head's keys.
    fn planes(&self, head: usize) -> (usize, usize) {
        let head = self.item.heads.start as usize + head;
        (self.step.planes.keys(head), self.step.planes.values(head))
    }

    /// Packs the keys and values of a head, unless an earlier tile did; returns the index of their cache entry.
    #[inline(always)]
    fn pack_block<S: Lanes>(
        &mut self,
        sizes: Sizes,
        (block, head): (usize, usize),
        (slots, next): (&[*const F; BLOCK], &[*const F]),
        loaded: KeyRange,
    ) -> usize {
        let mut entry = 0;
        if sizes.rows >= MIN_CACHING_ROWS {
            let head = self.item.heads.start as usize + head;
            let is_packed;
            (entry, is_packed) = self.space.blocks.claim((block, head), slots, loaded);
            if is_packed {
                return entry;
            }
        }
        let (key, value) = self.planes(head);
        let mut packing = Packing {
            slots,
            key_offset: key,
            value_offset: value,
            key_dim: self.step.heads.key_dim,
            value_dim: self.step.heads.values.dim(),
            keys: self.space.blocks.keys(sizes, entry).as_mut_ptr(),
            values: self.space.blocks.values::<F>(sizes, entry).as_mut_ptr(),
            ahead: self.ahead(next, head),
        };
        // SAFETY: every slot, including the dummy, holds keys and values of all heads; `fit` sized the buffers;
        // `dispatch` detected the instruction set.
        unsafe { F::pack::<S>(&mut packing, loaded.end as usize) };
        packing.ahead.fetch::<S>(usize::MAX);
        entry
    }

    /// Whether the item is a decode with few query heads per key head: packing a block would cost more than using it.
    fn is_direct(&self, sizes: Sizes) -> bool {
        let heads = self.step.heads;
        self.tokens().len() == 1
            && sizes.rows <= MAX_DIRECT_ROWS
            && F::has_direct(heads.key_dim, heads.values.dim())
    }

    /// Adds a block to the softmax records of a head, without packing its keys and values.
    #[inline(always)]
    fn attend_direct<S: Lanes>(
        &mut self,
        sizes: Sizes,
        (slots, head): (&[*const F; BLOCK], usize),
        loaded: KeyRange,
        next: Option<(&Slots<F>, usize)>,
    ) {
        let (key_dim, value_dim) = (self.step.heads.key_dim, self.step.heads.values.dim());
        let (key, value) = self.planes(head);
        let mut values = Fetch {
            slots: &slots[..loaded.end as usize],
            offset: value,
            dim: self.step.heads.values.stored_dim(),
        };
        let mut keys = Fetch {
            slots: next.map_or(&[], |(slots, _)| &slots.starts),
            offset: self.planes(next.map_or(0, |(_, head)| head)).0,
            dim: key_dim,
        };
        if let Some((slots, head)) = next {
            self.fetch_scales::<S>(&slots.indices, head);
        }
        let words = sizes.query_words;
        let first = head * sizes.rows * sizes.record;
        let space = &mut *self.space;
        let queries = space.queries.as_ptr();
        let mut direct = Direct {
            slots,
            n_keys: loaded.end as usize,
            key_dim,
            value_dim,
            rows: sizes.rows,
            offset: key,
            queries: queries.wrapping_add(head * sizes.rows * words),
            scores: space.scores.as_mut_ptr(),
            weights: space.weights.as_ptr(),
            rescale: space.rescale.as_ptr(),
            sums: space.span.as_mut_ptr().wrapping_add(first),
            record_len: sizes.record,
            scales: space.scales(sizes, head * sizes.rows),
        };
        // SAFETY: `fit` sized the buffers; every slot, including the dummy, holds keys and values of all heads;
        // `dispatch` detected the instruction set.
        unsafe { F::score_direct::<S>(&direct, &mut values) };
        self.fold::<S>(sizes, head, 0..sizes.rows);
        direct.offset = value;
        // SAFETY: as above.
        unsafe { F::weigh_direct::<S>(&direct, &mut keys) };
    }
}
