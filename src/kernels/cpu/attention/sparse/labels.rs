//! Scores of the queries against the labels (selected channels of the keys).

use std::ops::Range;

use super::super::super::element::load_up_to;
use super::super::super::simd::{LANES, Lanes};
use super::super::float_kv::FloatKv;
use super::super::kv_element::KvElement;
use super::super::pack::{Ahead, pack_keys};
use super::super::product::Product;
use super::super::scales::Scales;
use super::super::seen::BLOCK;
use super::Work;

type Slots<F> = [*const F; BLOCK];

impl<F: FloatKv> Work<'_, F> {
    pub(super) fn n_rows(&self) -> usize {
        self.tile.n_tokens * self.step.heads.group()
    }

    fn label_words(&self) -> usize {
        F::padded(self.step.channels.per_head()) / F::PER_WORD
    }

    #[inline(always)]
    pub(super) fn load_label_queries<S: Lanes>(&mut self) {
        let channels = self.step.channels.head(self.kv_head);
        let words = self.label_words();
        for row in 0..self.n_rows() {
            let to = self.space.label_queries[row * words..].as_mut_ptr();
            let query = self.query(row);
            for (i, channels) in channels.chunks(LANES).enumerate() {
                let mut values = [0.0; LANES];
                for (value, channel) in values.iter_mut().zip(channels) {
                    *value = query[usize::from(*channel)];
                }
                // SAFETY: `fit` sized the buffers for the words of every row; `dispatch` detected the instruction set.
                unsafe {
                    let values = load_up_to::<S>(&values);
                    F::write::<S>(to.wrapping_add(i * LANES / F::PER_WORD), values);
                }
            }
        }
    }

    /// Scores the labels of `keys`, which begin at a block and precede the last query; returns the bytes read.
    #[inline(always)]
    pub(super) fn score_labels<S: Lanes>(&mut self, keys: Range<usize>) -> usize {
        let (n_rows, group) = (self.n_rows(), self.step.heads.group());
        let first_position = self.tile.first_position;
        let mut slots = self.label_slots(keys.start, keys.end);
        for start in keys.clone().step_by(BLOCK) {
            let next = self.label_slots(start + BLOCK, keys.end);
            let n_in_block = BLOCK.min(keys.end - start);
            self.score_block::<S>((&slots, n_in_block), &next);
            for row in 0..n_rows {
                let before = first_position + row / group;
                let n_seen = before.saturating_sub(start).min(n_in_block);
                let scores = &self.space.scores[row * BLOCK..][..n_seen];
                self.space.best[row].add_scores(scores, start);
            }
            slots = next;
        }
        keys.len() * self.step.channels.per_head() * size_of::<F>()
    }

    /// Pointers to the labels of a block of keys from `start` on; the dummy slot's label replaces those from `end` on.
    #[inline(always)]
    fn label_slots(&self, start: usize, end: usize) -> Slots<F> {
        let labels = self.step.labels[self.kv_head * self.step.label_stride..].as_ptr();
        let (width, n_slots) = (self.step.channels.per_head(), self.step.planes.n_slots());
        let mut slots = [labels; BLOCK];
        let end = end.min(start + BLOCK);
        let of_block = self.slots().get(start..end).unwrap_or_default();
        for (to, slot) in slots.iter_mut().zip(of_block) {
            let slot = *slot as usize;
            assert!(
                slot < n_slots,
                "slot {slot} is outside the KV pool of {n_slots} slots"
            );
            *to = labels.wrapping_add(slot * width);
        }
        slots
    }

    #[inline(always)]
    fn score_block<S: Lanes>(&mut self, (slots, n_keys): (&Slots<F>, usize), next: &Slots<F>) {
        let (words, channels) = (self.label_words(), self.step.channels.per_head());
        let n_rows = self.n_rows();
        let keys = self.space.keys.as_mut_ptr();
        let mut ahead = Ahead {
            slots: next,
            byte: 0,
            start: 0,
            to_values: 0,
            key_bytes: channels * size_of::<F>(),
            value_bytes: 0,
        };
        for first in (0..n_keys).step_by(LANES) {
            let sixteen: &[*const F; LANES] = slots[first..first + LANES]
                .try_into()
                .expect("a group must have sixteen slots");
            // SAFETY: every slot has a label; `fit` sized the buffers; `dispatch` detected the instruction set.
            unsafe {
                pack_keys::<F, S>(sixteen, 0, channels, keys.wrapping_add(first), &mut ahead)
            };
        }
        let scores = Product {
            a: self.space.label_queries.as_ptr(),
            lda: words,
            b: keys,
            ldb: BLOCK,
            c: self.space.scores.as_mut_ptr(),
            ldc: BLOCK,
            depth: channels.div_ceil(F::PER_WORD),
            rescale: std::ptr::null(),
            scales: Scales::NONE,
        };
        // SAFETY: as above.
        unsafe { scores.replace::<F, S>(n_rows, n_keys.div_ceil(LANES)) };
    }
}
