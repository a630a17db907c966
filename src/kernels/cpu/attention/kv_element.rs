//! How a KV element type is attended to. [`KvElement`] is what an item of work asks for; floats do it by [`FloatKv`], which
//! says how they meet the lanes, and signed bytes in [`super::codes`].
//!
//! Both operands of a product are made of 32-bit words. A word is a pair of bf16 (`dot_pairs`), one f32 (`mul_add`) or a pair
//! of i16 (`dot_shorts`).

use half::{bf16, f16};

use super::super::element::{Element, load_up_to};
use super::super::kept::Kept;
use super::super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::BLOCK;
use super::direct::{Direct, Fetch};
use super::pack::{Packing, pack_floats};
use super::product::Product;
use super::state::{Fold, VECTORS};

/// An element type of the KV pool as attention reads it.
///
/// # Safety
/// Every method asks for what [`Lanes`] asks for, and for operands of the shapes that they name.
pub trait KvElement: Kept {
    /// Elements of a key in a word of an operand, and keys in a word of values.
    const PER_WORD: usize;
    /// Elements that a head is padded to whole numbers of.
    const CHUNK: usize;

    /// Elements of a head in whole chunks.
    fn padded(dim: usize) -> usize {
        dim.next_multiple_of(Self::CHUNK)
    }
    /// Words of a key that count.
    fn depth(key_dim: usize) -> usize;
    /// Rows of words that the values of the first `n_keys` keys of a block take.
    fn value_depth(n_keys: usize) -> usize;
    /// Whether few queries of such heads take keys and values from the pool into registers.
    fn has_direct(key_dim: usize, value_dim: usize) -> bool;
    /// Whether a word of packed values holds neither infinity nor NaN.
    fn is_finite(word: u32) -> bool;
    /// Compiles a kernel with the instructions that its products need.
    fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output;

    /// Writes a query as words, whole chunks of them, and returns its scale.
    unsafe fn write_query<S: Lanes>(query: &[f32], to: *mut u32) -> f32;
    /// Writes a row's weights of a block as words.
    unsafe fn write_weights<S: Lanes>(fold: &Fold, row: usize, weights: &[S::V; VECTORS]);
    /// Packs the first `n_keys` keys of a block with their values.
    unsafe fn pack<S: Lanes>(packing: &mut Packing<'_, Self>, n_keys: usize);
    /// Scores some rows of packed queries against `vectors` times sixteen packed keys.
    unsafe fn score<S: Lanes>(product: &Product, rows: usize, vectors: usize);
    /// Adds packed values, weighted, to the decayed sums of some rows.
    unsafe fn weigh<S: Lanes>(product: &Product, rows: usize, vectors: usize);
    /// Scores few queries against keys in the pool.
    unsafe fn score_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>);
    /// Adds values in the pool, weighted, to the decayed sums of few queries.
    unsafe fn weigh_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>);
    /// A record's sums times a factor, in the order of the elements.
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
            // SAFETY: the caller promises room, and the instruction set.
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
            // SAFETY: the caller promises room for a row, and the instruction set.
            unsafe { F::write::<S>(to.wrapping_add(i * LANES / F::PER_WORD), weights[i]) };
        }
    }

    #[inline(always)]
    unsafe fn pack<S: Lanes>(packing: &mut Packing<'_, Self>, n_keys: usize) {
        // SAFETY: the caller's promise.
        unsafe { pack_floats::<F, S>(packing, n_keys) };
    }

    #[inline(always)]
    unsafe fn score<S: Lanes>(product: &Product, rows: usize, vectors: usize) {
        // SAFETY: the caller's promise.
        unsafe { product.replace::<F, S>(rows, vectors) };
    }

    #[inline(always)]
    unsafe fn weigh<S: Lanes>(product: &Product, rows: usize, vectors: usize) {
        // SAFETY: the caller's promise.
        unsafe { product.add::<F, S>(rows, vectors) };
    }

    #[inline(always)]
    unsafe fn score_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>) {
        // SAFETY: the caller's promise.
        unsafe { direct.score::<S>(fetch) };
    }

    #[inline(always)]
    unsafe fn weigh_direct<S: Lanes>(direct: &Direct<'_, Self>, fetch: &mut Fetch<'_, Self>) {
        // SAFETY: the caller's promise.
        unsafe { direct.weigh::<S>(fetch) };
    }

    #[inline(always)]
    unsafe fn mean<S: Lanes>(sums: &[f32], factor: S::V, out: &mut [f32]) {
        const PAIR: usize = 2 * LANES;
        for (pair, out) in out.chunks_mut(PAIR).enumerate() {
            let values = sums.as_ptr().wrapping_add(pair * PAIR);
            // SAFETY: the sums are whole pairs of vectors, `mean` holds one; the caller detected the instruction set.
            unsafe {
                let [first, second] =
                    F::in_order::<S>([S::load(values), S::load(values.wrapping_add(LANES))]);
                // A zero's sign may depend on what was skipped.
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

/// A type of floats as operand of a product.
///
/// # Safety
/// Every method asks for what [`Lanes`] asks for.
pub trait FloatKv: Element {
    /// Elements in a word.
    const PER_WORD: usize;
    /// Sixteen words of an operand.
    type Operand<S: Lanes>: Copy;

    /// Whether a word holds neither infinity nor NaN.
    fn is_finite(word: u32) -> bool;
    /// Sixteen times the word at `p`.
    unsafe fn broadcast<S: Lanes>(p: *const u32) -> Self::Operand<S>;
    /// Reads sixteen words.
    unsafe fn operand<S: Lanes>(p: *const u32) -> Self::Operand<S>;
    /// Words in registers as an operand.
    unsafe fn from_words<S: Lanes>(words: S::W) -> Self::Operand<S>;
    /// Adds to each lane the products of its words, in order.
    unsafe fn multiply<S: Lanes>(acc: S::V, a: Self::Operand<S>, b: Self::Operand<S>) -> S::V;
    /// Writes sixteen values as `16 / PER_WORD` words. A value that [`Self::multiply`] takes for zero may become zero.
    unsafe fn write<S: Lanes>(p: *mut u32, v: S::V);
    /// Reads sixteen words of neighbouring elements.
    unsafe fn words<S: Lanes>(p: *const Self) -> S::W;
    /// Reads 32 elements of `PER_WORD` rows as words across the rows; the second row may not matter. See
    /// [`Self::in_order`].
    unsafe fn across<S: Lanes>(first: *const Self, second: *const Self) -> [S::W; 2];
    /// Values in the order of the elements, from the order in which [`Self::across`] has them.
    unsafe fn in_order<S: Lanes>(values: [S::V; 2]) -> [S::V; 2];
}

impl FloatKv for bf16 {
    const PER_WORD: usize = 2;
    type Operand<S: Lanes> = S::W;

    #[inline(always)]
    fn is_finite(word: u32) -> bool {
        word & 0x7f80 != 0x7f80 && word & 0x7f80_0000 != 0x7f80_0000
    }

    #[inline(always)]
    unsafe fn broadcast<S: Lanes>(p: *const u32) -> S::W {
        // SAFETY: the caller promises one word at `p`, and the instruction set.
        unsafe { S::splat_word_at(p) }
    }

    #[inline(always)]
    unsafe fn operand<S: Lanes>(p: *const u32) -> S::W {
        // SAFETY: the caller promises sixteen words at `p`, and the instruction set.
        unsafe { S::load_words(p) }
    }

    #[inline(always)]
    unsafe fn from_words<S: Lanes>(words: S::W) -> S::W {
        words
    }

    #[inline(always)]
    unsafe fn multiply<S: Lanes>(acc: S::V, a: S::W, b: S::W) -> S::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { S::dot_pairs(acc, a, b) }
    }

    #[inline(always)]
    unsafe fn write<S: Lanes>(p: *mut u32, v: S::V) {
        // SAFETY: the caller promises room for sixteen values at `p`, and the instruction set.
        unsafe { S::store_bf16_normal(p.cast(), v) };
    }

    #[inline(always)]
    unsafe fn words<S: Lanes>(p: *const Self) -> S::W {
        // SAFETY: the caller promises the elements of sixteen words at `p`, and the instruction set.
        unsafe { S::load_words(p.cast()) }
    }

    #[inline(always)]
    unsafe fn across<S: Lanes>(first: *const Self, second: *const Self) -> [S::W; 2] {
        // SAFETY: the caller promises 32 elements in a row, and the instruction set.
        unsafe { S::zip_bf16(S::load_words(first.cast()), S::load_words(second.cast())).into() }
    }

    #[inline(always)]
    unsafe fn in_order<S: Lanes>(values: [S::V; 2]) -> [S::V; 2] {
        // `zip_bf16` puts the first half of each quarter into its first vector, the other half into the second.
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { S::zip_quarters(values[0], values[1]).into() }
    }
}

/// The formats whose words are single f32.
macro_rules! singles {
    ($element:ty) => {
        impl FloatKv for $element {
            const PER_WORD: usize = 1;
            type Operand<S: Lanes> = S::V;

            #[inline(always)]
            fn is_finite(word: u32) -> bool {
                word & 0x7f80_0000 != 0x7f80_0000
            }

            #[inline(always)]
            unsafe fn broadcast<S: Lanes>(p: *const u32) -> S::V {
                // SAFETY: the caller promises one word at `p`, and the instruction set.
                unsafe { S::splat_at(p.cast()) }
            }

            #[inline(always)]
            unsafe fn operand<S: Lanes>(p: *const u32) -> S::V {
                // SAFETY: the caller promises sixteen words at `p`, and the instruction set.
                unsafe { S::load(p.cast()) }
            }

            #[inline(always)]
            unsafe fn from_words<S: Lanes>(words: S::W) -> S::V {
                // SAFETY: only registers; the caller detected the instruction set.
                unsafe { S::from_words(words) }
            }

            #[inline(always)]
            unsafe fn multiply<S: Lanes>(acc: S::V, a: S::V, b: S::V) -> S::V {
                // SAFETY: only registers; the caller detected the instruction set.
                unsafe { S::mul_add(a, b, acc) }
            }

            #[inline(always)]
            unsafe fn write<S: Lanes>(p: *mut u32, v: S::V) {
                // SAFETY: the caller promises room for sixteen values at `p`, and the instruction set.
                unsafe { S::store(p.cast(), v) };
            }

            #[inline(always)]
            unsafe fn words<S: Lanes>(p: *const Self) -> S::W {
                // SAFETY: the caller promises the elements of sixteen words at `p`, and the instruction set.
                unsafe { S::to_words(Self::load::<S>(p)) }
            }

            #[inline(always)]
            unsafe fn across<S: Lanes>(first: *const Self, _second: *const Self) -> [S::W; 2] {
                // SAFETY: the caller promises 32 elements in a row, and the instruction set.
                unsafe {
                    [
                        S::to_words(Self::load::<S>(first)),
                        S::to_words(Self::load::<S>(first.wrapping_add(LANES))),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn in_order<S: Lanes>(values: [S::V; 2]) -> [S::V; 2] {
                values
            }
        }
    };
}
singles!(f32);
singles!(f16);

/// Reads what `words` reads from the `len` elements at `p`; the others are zero.
///
/// # Safety
/// `p` is valid for `len` elements; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn words_part<F: FloatKv, S: Lanes>(p: *const F, len: usize) -> S::W {
    let mut padded = [F::default(); 2 * LANES];
    // SAFETY: `padded` holds all that is read; the rest is the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), len.min(2 * LANES));
        F::words::<S>(padded.as_ptr())
    }
}

/// Reads what `across` reads from the `len` elements at each row; the others are zero.
///
/// # Safety
/// The rows are valid for `len` elements; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn across_part<F: FloatKv, S: Lanes>(rows: [*const F; 2], len: usize) -> [S::W; 2] {
    let mut padded = [[F::default(); 2 * LANES]; 2];
    // SAFETY: as in `words_part`.
    unsafe {
        for (padded, row) in padded.iter_mut().zip(rows) {
            std::ptr::copy_nonoverlapping(row, padded.as_mut_ptr(), len.min(2 * LANES));
        }
        F::across::<S>(padded[0].as_ptr(), padded[1].as_ptr())
    }
}
