//! Packs keys and values from the KV pool into blocks for attention products.

use super::super::simd::{LANES, Lanes};
use super::float_kv::{FloatKv, across_part, words_part};
use super::kv_element::KvElement;
use super::seen::BLOCK;

/// Cache lines of keys and values to prefetch in portions: all at once would delay the lines needed now.
pub struct Ahead<'s, F> {
    pub slots: &'s [*const F],
    /// Next byte to prefetch of the first slot: of its key, then of its value.
    pub byte: usize,
    /// Byte offset of the head's keys from a slot's start, and the distance from its keys to its values.
    pub start: usize,
    pub to_values: usize,
    /// Bytes of a slot's key, and of its value; 0 for a value that is part of the key.
    pub key_bytes: usize,
    pub value_bytes: usize,
}

impl<F> Ahead<'_, F> {
    #[inline(always)]
    pub fn fetch<S: Lanes>(&mut self, max_lines: usize) {
        for _ in 0..max_lines {
            let Some(slot) = self.slots.first() else {
                return;
            };
            let at = if self.byte < self.key_bytes {
                self.byte
            } else {
                self.byte - self.key_bytes + self.to_values
            };
            // SAFETY: only a hint.
            unsafe { S::prefetch(slot.cast::<u8>().wrapping_add(self.start + at)) };
            self.byte += 64;
            if self.byte >= self.key_bytes + self.value_bytes {
                (self.byte, self.slots) = (0, &self.slots[1..]);
            }
        }
    }
}

pub struct Packing<'s, F> {
    pub slots: &'s [*const F; BLOCK],
    /// Offsets of the head's key and value from a slot's start, in elements.
    pub key_offset: usize,
    pub value_offset: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// `[depth, BLOCK]` words: each lane is a key.
    pub keys: *mut u32,
    /// `[BLOCK / PER_WORD, width]` words: each lane is an element.
    pub values: *mut u32,
    pub ahead: Ahead<'s, F>,
}

/// Packs a block of floats, sixteen keys at a time.
///
/// # Safety
/// The fields of `packing` are valid for `n_keys` keys and values; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn pack_floats<F: FloatKv, S: Lanes>(packing: &mut Packing<'_, F>, n_keys: usize) {
    let width = F::padded(packing.value_dim);
    for group in (0..n_keys).step_by(LANES) {
        let sixteen: &[*const F; LANES] = packing.slots[group..group + LANES]
            .try_into()
            .expect("a group must have sixteen slots");
        let keys = packing.keys.wrapping_add(group);
        let row = group / F::PER_WORD;
        let values = packing.values.wrapping_add(row * width);
        let (key, key_dim) = (packing.key_offset, packing.key_dim);
        let (value, value_dim) = (packing.value_offset, packing.value_dim);
        // SAFETY: guaranteed by the caller.
        unsafe {
            pack_keys::<F, S>(sixteen, key, key_dim, keys, &mut packing.ahead);
            pack_values::<F, S>(sixteen, value, value_dim, values, &mut packing.ahead);
        }
    }
}

/// Packs sixteen keys so that each lane is a key.
///
/// # Safety
/// The slots hold `key_dim` elements at `at`, `to` is valid for their words; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn pack_keys<F: FloatKv, S: Lanes>(
    slots: &[*const F; LANES],
    at: usize,
    key_dim: usize,
    to: *mut u32,
    ahead: &mut Ahead<'_, F>,
) {
    let step = LANES * F::PER_WORD;
    for first in (0..key_dim).step_by(step) {
        // SAFETY: the caller's slots hold `key_dim` elements at `at`.
        unsafe {
            let mut rows = [S::splat_word(0); LANES];
            if key_dim - first < step {
                for i in 0..LANES {
                    let key = slots[i].wrapping_add(at + first);
                    rows[i] = words_part::<F, S>(key, key_dim - first);
                }
            } else {
                for i in 0..LANES {
                    rows[i] = F::words::<S>(slots[i].wrapping_add(at + first));
                }
            }
            let columns = S::transpose(rows);
            let to = to.wrapping_add(first / F::PER_WORD * BLOCK);
            for i in 0..LANES {
                S::store_words(to.wrapping_add(i * BLOCK), columns[i]);
            }
            ahead.fetch::<S>(16);
        }
    }
}

/// Packs sixteen rows of values, `PER_WORD` of them in a word, as [`FloatKv::across`] reads them.
///
/// # Safety
/// As for keys, with `value_dim` elements.
#[inline(always)]
pub unsafe fn pack_values<F: FloatKv, S: Lanes>(
    slots: &[*const F; LANES],
    at: usize,
    value_dim: usize,
    to: *mut u32,
    ahead: &mut Ahead<'_, F>,
) {
    const WHOLE: usize = 2 * LANES;
    let width = F::padded(value_dim);
    for i in 0..LANES / F::PER_WORD {
        let first = slots[i * F::PER_WORD].wrapping_add(at);
        let second = slots[i * F::PER_WORD + F::PER_WORD - 1].wrapping_add(at);
        let to = to.wrapping_add(i * width);
        for element in (0..width).step_by(2 * LANES) {
            let rows = [first.wrapping_add(element), second.wrapping_add(element)];
            // SAFETY: the caller's slots hold `value_dim` elements at `at`.
            unsafe {
                let words = match value_dim - element {
                    WHOLE.. => F::across::<S>(rows[0], rows[1]),
                    len => across_part::<F, S>(rows, len),
                };
                S::store_words(to.wrapping_add(element), words[0]);
                S::store_words(to.wrapping_add(element + LANES), words[1]);
            }
        }
        ahead.fetch::<S>(8);
    }
}
