//! Attention to the selected keys, computed as if they were the whole sequence.

use std::f32::consts::LOG2_E;

use super::super::super::element::load_up_to;
use super::super::super::simd::{LANES, Lanes};
use super::super::block::cap_scores;
use super::super::direct::{Direct, Fetch};
use super::super::float_kv::FloatKv;
use super::super::pack::{Ahead, pack_keys, pack_values};
use super::super::product::Product;
use super::super::scales::Scales;
use super::super::seen::{BLOCK, KeyRange, SPAN};
use super::super::sizes::Sizes;
use super::super::state::{Fold, clear, finish, merge};
use super::Work;

/// Pointers to the slots of a block in the first head's plane of keys.
type Slots<F> = [*const F; BLOCK];

impl<F: FloatKv> Work<'_, F> {
    #[inline(always)]
    pub(super) fn attend_chosen<S: Lanes>(&mut self) {
        let group = self.step.heads.group();
        let n_rows = self.tile.n_tokens * group;
        let sizes = Sizes::of::<F>(self.step.heads, 1);
        let mut slots = self.key_slots(0, 0);
        for row in 0..n_rows {
            self.load_query::<S>(row);
            let n_keys = self.space.best[row].chosen().len();
            for start in (0..n_keys).step_by(BLOCK) {
                let (next_row, next_start) = if start + BLOCK < n_keys {
                    (row, start + BLOCK)
                } else {
                    (row + 1, 0)
                };
                let (next, n_next) = if next_row < n_rows {
                    self.key_slots(next_row, next_start)
                } else {
                    (slots.0, 0)
                };
                if start.is_multiple_of(SPAN) {
                    clear(&mut self.space.span[..sizes.record]);
                }
                self.attend_block::<S>(sizes, (&slots.0, slots.1), &next[..n_next]);
                if start + BLOCK >= n_keys || (start + BLOCK).is_multiple_of(SPAN) {
                    self.close_span::<S>(sizes, start < SPAN);
                }
                slots = (next, n_next);
            }
            self.write::<S>(sizes, row);
        }
    }

    /// The slots of a block of a row's selected keys, and their number; the dummy slot fills the rest.
    #[inline(always)]
    fn key_slots(&self, row: usize, start: usize) -> (Slots<F>, usize) {
        let chosen = &self.space.best[row].chosen()[start..];
        let chosen = &chosen[..chosen.len().min(BLOCK)];
        let (kv, planes, slots) = (self.step.kv.as_ptr(), self.step.planes, self.slots());
        let n_slots = planes.n_slots();
        let mut keys = [kv; BLOCK];
        for (to, position) in keys.iter_mut().zip(chosen) {
            let slot = slots[*position as usize] as usize;
            assert!(
                slot < n_slots,
                "slot {slot} is outside the KV pool of {n_slots} slots"
            );
            *to = kv.wrapping_add(planes.slot(slot));
        }
        (keys, chosen.len())
    }

    #[inline(always)]
    fn load_query<S: Lanes>(&mut self, row: usize) {
        let to = self.space.query.as_mut_ptr();
        for (i, values) in self.query(row).chunks(LANES).enumerate() {
            // SAFETY: `fit` sized the buffers for the words of a query; `dispatch` detected the instruction set.
            unsafe {
                let values = load_up_to::<S>(values);
                F::write::<S>(to.wrapping_add(i * LANES / F::PER_WORD), values);
            }
        }
    }

    /// Adds a block to the softmax record of the span, and prefetches the keys `next`.
    #[inline(always)]
    fn attend_block<S: Lanes>(
        &mut self,
        sizes: Sizes,
        (slots, n_keys): (&Slots<F>, usize),
        next: &[*const F],
    ) {
        let heads = self.step.heads;
        let whole = |dim: usize| dim.is_multiple_of(2 * LANES);
        if whole(heads.key_dim) && whole(heads.values.dim()) {
            self.attend_direct::<S>(sizes, (slots, n_keys), next)
        } else {
            self.attend_packed::<S>(sizes, (slots, n_keys))
        }
    }

    #[inline(always)]
    fn attend_direct<S: Lanes>(
        &mut self,
        sizes: Sizes,
        (slots, n_keys): (&Slots<F>, usize),
        next: &[*const F],
    ) {
        let heads = self.step.heads;
        let planes = self.step.planes;
        let (key, value) = (planes.keys(self.kv_head), planes.values(self.kv_head));
        let mut values = Fetch {
            slots: &slots[..n_keys],
            offset: value,
            dim: heads.values.stored_dim(),
        };
        let mut keys = Fetch {
            slots: next,
            offset: key,
            dim: heads.key_dim,
        };
        let space = &mut *self.space;
        let mut direct = Direct {
            slots,
            n_keys,
            key_dim: heads.key_dim,
            value_dim: heads.values.dim(),
            rows: 1,
            offset: key,
            queries: space.query.as_ptr(),
            scores: space.scores.as_mut_ptr(),
            weights: space.weights.as_ptr(),
            rescale: space.rescale.as_ptr(),
            sums: space.span.as_mut_ptr(),
            record_len: sizes.record,
            scales: Scales::NONE,
        };
        // SAFETY: `fit` sized the buffers; every slot, including the dummy, holds keys and values of all heads;
        // `dispatch` detected the instruction set.
        unsafe { direct.score::<S>(&mut values) };
        self.fold::<S>(sizes, n_keys);
        direct.offset = value;
        // SAFETY: as above.
        unsafe { direct.weigh::<S>(&mut keys) };
    }

    /// As `attend_direct`, for widths that are not whole vectors.
    #[inline(always)]
    fn attend_packed<S: Lanes>(&mut self, sizes: Sizes, (slots, n_keys): (&Slots<F>, usize)) {
        let heads = self.step.heads;
        let (planes, kv_head) = (self.step.planes, self.kv_head);
        let keys = self.space.keys.as_mut_ptr();
        let values = self.space.values.as_mut_ptr();
        let mut ahead = Ahead {
            slots: &[],
            byte: 0,
            start: 0,
            to_values: 0,
            key_bytes: 0,
            value_bytes: 0,
        };
        for first in (0..n_keys).step_by(LANES) {
            let sixteen: &[*const F; LANES] = slots[first..first + LANES]
                .try_into()
                .expect("a group must have sixteen slots");
            let keys = keys.wrapping_add(first);
            let values = values.wrapping_add(first / F::PER_WORD * sizes.width);
            let (key, value) = (planes.keys(kv_head), planes.values(kv_head));
            // SAFETY: as in `attend_direct`.
            unsafe {
                pack_keys::<F, S>(sixteen, key, heads.key_dim, keys, &mut ahead);
                pack_values::<F, S>(sixteen, value, heads.values.dim(), values, &mut ahead);
            }
        }
        let scores = Product {
            a: self.space.query.as_ptr(),
            lda: sizes.query_words,
            b: keys,
            ldb: BLOCK,
            c: self.space.scores.as_mut_ptr(),
            ldc: BLOCK,
            depth: sizes.depth,
            rescale: std::ptr::null(),
            scales: Scales::NONE,
        };
        // SAFETY: as above.
        unsafe { scores.replace::<F, S>(1, n_keys.div_ceil(LANES)) };
        self.fold::<S>(sizes, n_keys);
        let sums = Product {
            a: self.space.weights.as_ptr(),
            lda: BLOCK / F::PER_WORD,
            b: values,
            ldb: sizes.width,
            c: self.space.span.as_mut_ptr(),
            ldc: sizes.record,
            depth: n_keys.div_ceil(F::PER_WORD),
            rescale: self.space.rescale.as_ptr(),
            scales: Scales::NONE,
        };
        // SAFETY: as above.
        unsafe { sums.add::<F, S>(1, sizes.width / LANES) };
    }

    #[inline(always)]
    fn fold<S: Lanes>(&mut self, sizes: Sizes, n_keys: usize) {
        let heads = self.step.heads;
        let space = &mut *self.space;
        let scale = match heads.score_cap {
            None => heads.scale,
            Some(cap) => {
                cap_scores::<S>(&mut space.scores[..BLOCK], heads.scale, cap);
                1.0
            }
        };
        let fold = Fold {
            scores: space.scores.as_ptr(),
            weights: space.weights.as_mut_ptr(),
            rescale: space.rescale.as_mut_ptr(),
            records: space.span.as_mut_ptr(),
            record_len: sizes.record,
            scale: scale * LOG2_E,
            scales: Scales::NONE,
        };
        let seen = KeyRange {
            start: 0,
            end: n_keys as u32,
        };
        // SAFETY: `fit` sized the buffers for a row; `dispatch` detected the instruction set.
        unsafe { fold.run::<F, S>(&[seen]) };
    }

    #[inline(always)]
    fn close_span<S: Lanes>(&mut self, sizes: Sizes, is_first: bool) {
        let space = &mut *self.space;
        let (total, span) = (
            &mut space.total[..sizes.record],
            &space.span[..sizes.record],
        );
        if is_first {
            total.copy_from_slice(span)
        } else {
            // SAFETY: `dispatch` detected the instruction set.
            unsafe { merge::<S>(total, span) }
        }
    }

    #[inline(always)]
    fn write<S: Lanes>(&mut self, sizes: Sizes, row: usize) {
        let heads = self.step.heads;
        let (group, dim) = (heads.group(), heads.values.dim());
        let head = self.kv_head * group + row % group;
        let token = self.tile.first_token + row / group;
        let sink = self.step.sinks.map(|sinks| sinks[head] * LOG2_E);
        let total = &self.space.total[..sizes.record];
        // SAFETY: each token and head belongs to one item; `dispatch` detected the instruction set.
        unsafe {
            let out = self
                .step
                .out
                .part((token * heads.n_heads + head) * dim, dim);
            finish::<F, S>(total, sink, out);
        }
    }
}
