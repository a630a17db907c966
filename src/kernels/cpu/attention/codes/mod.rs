//! Attention to int8 keys and values: integer products, which are exact, so the order of summation doesn't matter.
//!
//! Queries and softmax weights are quantised to 16-bit integers, with a scale for each row. A word of four codes (int8
//! values) becomes two words of i16 pairs: its even bytes and its odd bytes. The integer sum of a group is multiplied
//! by the scales of the group and of the row; the groups of a key are added in ascending order.

mod direct;
mod narrow;
mod product;

use super::direct::{Direct, Fetch};
use super::kv_element::KvElement;
use super::pack::Packing;
use super::product::Product;
use super::seen::BLOCK;
use super::state::{Fold, VECTORS};
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch_integers};
use souffleur_base::kv_layout::SCALE_GROUP;

const QUAD: usize = 4;
const CHUNK: usize = QUAD * LANES;
/// Words of i16 pairs that hold the codes of a chunk.
const CHUNK_WORDS: usize = CHUNK / 2;
const CHUNK_VECTORS: usize = CHUNK / LANES;
/// Groups of a chunk; the elements of a group share a scale.
const CHUNK_GROUPS: usize = CHUNK / SCALE_GROUP;
/// Words of four codes in a group.
const GROUP_QUADS: usize = SCALE_GROUP / QUAD;
/// Words of i16 pairs that hold the codes of a group.
const GROUP_WORDS: usize = SCALE_GROUP / 2;
const GROUP_VECTORS: usize = SCALE_GROUP / LANES;
/// Keys whose weights are packed together, half of a block: a word pairs a key of the first sixteen with one of the
/// third, or one of the second with one of the fourth.
const HALF: usize = 4 * LANES;
const HALF_WORDS: usize = HALF / 2;

// [`Lanes::zip_bytes`] separates the halves of a chunk, so a chunk must have two groups.
const _: () = assert!(CHUNK_GROUPS == 2 && BLOCK.is_multiple_of(HALF));

impl KvElement for i8 {
    const PER_WORD: usize = 2;
    const CHUNK: usize = CHUNK;

    fn depth(key_dim: usize) -> usize {
        key_dim.div_ceil(QUAD) * 2
    }

    #[inline(always)]
    fn value_depth(n_keys: usize) -> usize {
        n_keys.div_ceil(HALF) * HALF_WORDS
    }

    fn has_direct(_key_dim: usize, _value_dim: usize) -> bool {
        true
    }

    fn is_finite(_word: u32) -> bool {
        true
    }

    fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
        dispatch_integers(isa, kernel)
    }

    #[inline(always)]
    unsafe fn write_query<S: Lanes>(query: &[f32], to: *mut u32) -> f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { narrow::write_query::<S>(query, to) }
    }

    #[inline(always)]
    unsafe fn write_weights<S: Lanes>(fold: &Fold, row: usize, weights: &[S::V; VECTORS]) {
        // SAFETY: guaranteed by the caller.
        unsafe { narrow::write_weights::<S>(fold, row, weights) };
    }

    #[inline(always)]
    unsafe fn pack<S: Lanes>(packing: &mut Packing<'_, Self>, n_keys: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            pack_keys::<S>(packing, n_keys);
            pack_values::<S>(packing, n_keys);
        }
    }

    #[inline(always)]
    unsafe fn score<S: Lanes>(product: &Product, rows: usize, vectors: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { product.score_codes::<S>(rows, vectors) };
    }

    #[inline(always)]
    unsafe fn weigh<S: Lanes>(product: &Product, rows: usize, _vectors: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { product.weigh_codes::<S>(rows) };
    }

    #[inline(always)]
    unsafe fn score_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>) {
        // SAFETY: guaranteed by the caller.
        unsafe { direct.score_codes::<S>(fetch) };
    }

    #[inline(always)]
    unsafe fn weigh_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>) {
        // SAFETY: guaranteed by the caller.
        unsafe { direct.weigh_codes::<S>(fetch) };
    }

    /// Undoes the order of [`Lanes::zip_bytes`].
    #[inline(always)]
    unsafe fn mean<S: Lanes>(sums: &[f32], factor: S::V, out: &mut [f32]) {
        for (sums, out) in sums.chunks_exact(CHUNK).zip(out.chunks_mut(CHUNK)) {
            let mut mean = [0f32; CHUNK];
            for vector in 0..CHUNK_VECTORS {
                let mut lanes = [0f32; LANES];
                // SAFETY: `sums` holds a chunk, `lanes` a vector; the caller detected the instruction set.
                unsafe {
                    let sums = S::load(sums.as_ptr().wrapping_add(vector * LANES));
                    // Adding 0 makes zeros positive: their sign may depend on the skipped terms.
                    S::store(lanes.as_mut_ptr(), S::mul_add(sums, factor, S::splat(0.0)));
                }
                for (quarter, lanes) in lanes.chunks_exact(4).enumerate() {
                    let (group, word) = (vector / 2, vector % 2 * 2 + quarter / 2);
                    let at = (2 * group + quarter % 2) * LANES + word * QUAD;
                    mean[at..at + 4].copy_from_slice(lanes);
                }
            }
            out.copy_from_slice(&mean[..out.len()]);
        }
    }
}

/// Packs keys as words of i16, each lane a key.
///
/// # Safety
/// As for [`KvElement::pack`].
#[inline(always)]
unsafe fn pack_keys<S: Lanes>(packing: &mut Packing<'_, i8>, n_keys: usize) {
    for group in (0..n_keys).step_by(LANES) {
        for chunk in 0..packing.key_dim.div_ceil(CHUNK) {
            // SAFETY: whole chunks of the slots, which slack follows, and of the packed keys.
            unsafe {
                let mut rows = [S::splat_word(0); LANES];
                for i in 0..LANES {
                    let key =
                        packing.slots[group + i].wrapping_add(packing.key_offset + chunk * CHUNK);
                    rows[i] = S::load_words(key.cast());
                }
                packing.ahead.fetch::<S>(16);
                let columns = S::transpose(rows);
                let mut to = packing
                    .keys
                    .wrapping_add(chunk * CHUNK_WORDS * BLOCK + group);
                for i in 0..LANES {
                    S::store_words(to, S::extend_bytes(columns[i]));
                    S::store_words(to.wrapping_add(BLOCK), S::high_bytes(columns[i]));
                    to = to.wrapping_add(2 * BLOCK);
                }
            }
        }
    }
}

/// Packs values as words of i16 pairs, each lane an element: first the pairs of the first and third sixteen keys of a
/// half, then those of the second and fourth.
///
/// # Safety
/// As for [`KvElement::pack`].
#[inline(always)]
unsafe fn pack_values<S: Lanes>(packing: &mut Packing<'_, i8>, n_keys: usize) {
    let width = i8::padded(packing.value_dim);
    for half in 0..n_keys.div_ceil(HALF) {
        for i in 0..LANES {
            let to = packing.values.wrapping_add((half * HALF_WORDS + i) * width);
            for first in (0..width).step_by(CHUNK) {
                // SAFETY: whole chunks of the slots, which slack follows, and of the packed values.
                unsafe {
                    let quads =
                        quads::<S>(packing.slots, half * HALF + i, packing.value_offset + first);
                    for k in 0..CHUNK_VECTORS {
                        let to = to.wrapping_add(first + k * LANES);
                        S::store_words(to, S::extend_bytes(quads[k]));
                        S::store_words(to.wrapping_add(LANES * width), S::high_bytes(quads[k]));
                    }
                }
            }
            packing.ahead.fetch::<S>(8);
        }
    }
}

/// Loads a chunk of the values of keys `first`, `first + 16`, `first + 32` and `first + 48`. The even bytes of a word
/// hold the first and third key, the odd bytes the second and fourth.
///
/// # Safety
/// The slots hold a chunk at `at`; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn quads<S: Lanes>(slots: &[*const i8; BLOCK], first: usize, at: usize) -> [S::W; QUAD] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut rows = [S::splat_word(0); QUAD];
        for (j, row) in rows.iter_mut().enumerate() {
            *row = S::load_words(slots[first + j * LANES].wrapping_add(at).cast());
        }
        S::zip_bytes(rows)
    }
}
