//! Float keys and values (f32, f16, bf16) as the 32-bit words of an attention product.

use half::{bf16, f16};

use super::super::element::Element;
use super::super::simd::{LANES, Lanes};

/// # Safety
/// Every method has the requirements of [`Lanes`].
pub trait FloatKv: Element {
    const PER_WORD: usize;
    type Operand<S: Lanes>: Copy;

    /// Whether a word holds neither infinity nor NaN.
    fn is_finite(word: u32) -> bool;
    /// The word at `p` in all sixteen lanes.
    unsafe fn broadcast<S: Lanes>(p: *const u32) -> Self::Operand<S>;
    unsafe fn operand<S: Lanes>(p: *const u32) -> Self::Operand<S>;
    unsafe fn from_words<S: Lanes>(words: S::W) -> Self::Operand<S>;
    /// Adds to each lane the products of its words, in order.
    unsafe fn multiply<S: Lanes>(acc: S::V, a: Self::Operand<S>, b: Self::Operand<S>) -> S::V;
    /// Writes sixteen values as `16 / PER_WORD` words. A value that [`Self::multiply`] treats as zero may become zero.
    unsafe fn write<S: Lanes>(p: *mut u32, v: S::V);
    /// Reads sixteen words of neighbouring elements.
    unsafe fn words<S: Lanes>(p: *const Self) -> S::W;
    /// Reads 32 elements of `PER_WORD` rows: each word holds the same element of every row. [`Self::in_order`] restores
    /// the order of the elements. If `PER_WORD` is 1, the second row is ignored.
    unsafe fn across<S: Lanes>(first: *const Self, second: *const Self) -> [S::W; 2];
    /// Reorders values from the order of [`Self::across`] to that of the elements.
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
        // SAFETY: the caller guarantees one word at `p`, and the instruction set.
        unsafe { S::splat_word_at(p) }
    }

    #[inline(always)]
    unsafe fn operand<S: Lanes>(p: *const u32) -> S::W {
        // SAFETY: the caller guarantees sixteen words at `p`, and the instruction set.
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
        // SAFETY: the caller guarantees space for sixteen values at `p`, and the instruction set.
        unsafe { S::store_bf16_normal(p.cast(), v) };
    }

    #[inline(always)]
    unsafe fn words<S: Lanes>(p: *const Self) -> S::W {
        // SAFETY: the caller guarantees the elements of sixteen words at `p`, and the instruction set.
        unsafe { S::load_words(p.cast()) }
    }

    #[inline(always)]
    unsafe fn across<S: Lanes>(first: *const Self, second: *const Self) -> [S::W; 2] {
        // SAFETY: the caller guarantees 32 elements in a row, and the instruction set.
        unsafe { S::zip_bf16(S::load_words(first.cast()), S::load_words(second.cast())).into() }
    }

    #[inline(always)]
    unsafe fn in_order<S: Lanes>(values: [S::V; 2]) -> [S::V; 2] {
        // `zip_bf16` puts the first half of each quarter into its first vector, the other half into the second.
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { S::zip_quarters(values[0], values[1]).into() }
    }
}

/// Implements [`FloatKv`] for a type whose elements become words of one f32 each.
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
                // SAFETY: the caller guarantees one word at `p`, and the instruction set.
                unsafe { S::splat_at(p.cast()) }
            }

            #[inline(always)]
            unsafe fn operand<S: Lanes>(p: *const u32) -> S::V {
                // SAFETY: the caller guarantees sixteen words at `p`, and the instruction set.
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
                // SAFETY: the caller guarantees space for sixteen values at `p`, and the instruction set.
                unsafe { S::store(p.cast(), v) };
            }

            #[inline(always)]
            unsafe fn words<S: Lanes>(p: *const Self) -> S::W {
                // SAFETY: the caller guarantees the elements of sixteen words at `p`, and the instruction set.
                unsafe { S::to_words(Self::load::<S>(p)) }
            }

            #[inline(always)]
            unsafe fn across<S: Lanes>(first: *const Self, _second: *const Self) -> [S::W; 2] {
                // SAFETY: the caller guarantees 32 elements in a row, and the instruction set.
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

/// Like `words`, with only `len` elements at `p`; the missing ones are zero.
///
/// # Safety
/// `p` is valid for `len` elements; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn words_part<F: FloatKv, S: Lanes>(p: *const F, len: usize) -> S::W {
    let mut padded = [F::default(); 2 * LANES];
    // SAFETY: `padded` holds all that is read; the caller guarantees the rest.
    unsafe {
        std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), len.min(2 * LANES));
        F::words::<S>(padded.as_ptr())
    }
}

/// Like `across`, with only `len` elements in each row; the missing ones are zero.
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
