//! The trait of KV element types, [`KvElement`]: attention operations that depend on the type.
//!
//! Floats implement them through [`FloatKv`], int8 in [`super::codes`]. Both operands of a product consist of 32-bit
//! words: a pair of bf16 (`dot_pairs`), one f32 (`mul_add`) or a pair of i16 (`dot_shorts`).

use super::super::element::load_up_to;
use super::super::kept::Kept;
use super::super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::direct::{Direct, Fetch};
use super::float_kv::FloatKv;
use super::pack::{Packing, pack_floats};
use super::product::Product;
use super::seen::BLOCK;
use super::state::{Fold, VECTORS};

/// # Safety
/// Every method has the requirements of [`Lanes`], and needs operands of the documented shapes.
pub trait KvElement: Kept {
    /// Elements of a key in a word of packed keys; keys in a word of packed values.
    const PER_WORD: usize;
    /// A head is padded to a multiple of this number of elements.
    const CHUNK: usize;

    fn padded(dim: usize) -> usize {
        dim.next_multiple_of(Self::CHUNK)
    }
    /// Words of a key without padding.
    fn depth(key_dim: usize) -> usize;
    /// Rows of words that hold the values of a block's first `n_keys` keys.
    fn value_depth(n_keys: usize) -> usize;
    /// Whether small query tiles read the pool without packing, for heads of these sizes.
    fn has_direct(key_dim: usize, value_dim: usize) -> bool;
    /// Whether a word of packed values holds neither infinity nor NaN.
    fn is_finite(word: u32) -> bool;
    fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output;

    /// Writes a query as words, padded to whole chunks, and returns its scale.
    unsafe fn write_query<S: Lanes>(query: &[f32], to: *mut u32) -> f32;
    unsafe fn write_weights<S: Lanes>(fold: &Fold, row: usize, weights: &[S::V; VECTORS]);
    unsafe fn pack<S: Lanes>(packing: &mut Packing<'_, Self>, n_keys: usize);
    /// Scores `rows` packed queries against `16 * vectors` packed keys.
    unsafe fn score<S: Lanes>(product: &Product, rows: usize, vectors: usize);
    /// Adds weighted packed values to the rescaled accumulators of `rows` queries (online softmax).
    unsafe fn weigh<S: Lanes>(product: &Product, rows: usize, vectors: usize);
    /// Scores few queries against keys in the pool.
    unsafe fn score_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>);
    /// Adds weighted values in the pool to the rescaled accumulators of few queries (online softmax).
    unsafe fn weigh_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>);
    /// Multiplies the weighted sums of a softmax record by a factor, and restores the order of the elements.
    unsafe fn mean<S: Lanes>(sums: &[f32], factor: S::V, out: &mut [f32]);
}

impl<F: FloatKv> KvElement for F {
    const PER_WORD: usize = <F as FloatKv>::PER_WORD;
    const CHUNK: usize = 2 * LANES;

    fn depth(key_dim: usize) -> usize {
        key_dim.div_ceil(F::PER_WORD)
    }

    #[inline(always)]
    fn value_depth(n_keys: usize) -> usize {
        n_keys.div_ceil(F::PER_WORD)
    }

    fn has_direct(key_dim: usize, value_dim: usize) -> bool {
        key_dim.is_multiple_of(2 * LANES) && value_dim.is_multiple_of(2 * LANES)
    }

    #[inline(always)]
    fn is_finite(word: u32) -> bool {
        F::is_finite(word)
    }

    fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
        dispatch(isa, kernel)
    }

    #[inline(always)]
    unsafe fn write_query<S: Lanes>(query: &[f32], to: *mut u32) -> f32 {
        for (i, values) in query.chunks(LANES).enumerate() {
            // SAFETY: the caller guarantees space for all words, and the instruction set.
            unsafe {
                let values = load_up_to::<S>(values);
                F::write::<S>(to.wrapping_add(i * LANES / F::PER_WORD), values);
            }
        }
        1.0
    }

    #[inline(always)]
    unsafe fn write_weights<S: Lanes>(fold: &Fold, row: usize, weights: &[S::V; VECTORS]) {
        let to = fold.weights.wrapping_add(row * BLOCK / F::PER_WORD);
        for i in 0..VECTORS {
            // SAFETY: the caller guarantees space for a row, and the instruction set.
            unsafe { F::write::<S>(to.wrapping_add(i * LANES / F::PER_WORD), weights[i]) };
        }
    }

    #[inline(always)]
    unsafe fn pack<S: Lanes>(packing: &mut Packing<'_, Self>, n_keys: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { pack_floats::<F, S>(packing, n_keys) };
    }

    #[inline(always)]
    unsafe fn score<S: Lanes>(product: &Product, rows: usize, vectors: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { product.replace::<F, S>(rows, vectors) };
    }

    #[inline(always)]
    unsafe fn weigh<S: Lanes>(product: &Product, rows: usize, vectors: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { product.add::<F, S>(rows, vectors) };
    }

    #[inline(always)]
    unsafe fn score_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>) {
        // SAFETY: guaranteed by the caller.
        unsafe { direct.score::<S>(fetch) };
    }

    #[inline(always)]
    unsafe fn weigh_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>) {
        // SAFETY: guaranteed by the caller.
        unsafe { direct.weigh::<S>(fetch) };
    }

    #[inline(always)]
    unsafe fn mean<S: Lanes>(sums: &[f32], factor: S::V, out: &mut [f32]) {
        const PAIR: usize = 2 * LANES;
        for (pair, out) in out.chunks_mut(PAIR).enumerate() {
            let values = sums.as_ptr().wrapping_add(pair * PAIR);
            // SAFETY: the sums are whole pairs of vectors, and `mean` is one; the caller detected the instruction set.
            unsafe {
                let [first, second] =
                    F::in_order::<S>([S::load(values), S::load(values.wrapping_add(LANES))]);
                // Adding 0 makes zeros positive: their sign may depend on the skipped terms.
                let first = S::mul_add(first, factor, S::splat(0.0));
                let second = S::mul_add(second, factor, S::splat(0.0));
                let mut mean = [0.0; PAIR];
                let to = match out.len() {
                    PAIR => out.as_mut_ptr(),
                    _ => mean.as_mut_ptr(),
                };
                S::store(to, first);
                S::store(to.wrapping_add(LANES), second);
                if out.len() < PAIR {
                    out.copy_from_slice(&mean[..out.len()]);
                }
            }
        }
    }
}
