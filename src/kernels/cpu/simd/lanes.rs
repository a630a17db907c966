//! The SIMD abstraction of kernels: sixteen f32 lanes (`Lanes`) and the trait `Kernel`.

#![allow(
    clippy::missing_safety_doc,
    reason = "the traits say it for all of their functions"
)]

use half::{bf16, f16};

use super::super::strip_product::StripProduct;

pub const LANES: usize = 16;
pub const EIGHT: usize = LANES / 2;
pub const FOUR: usize = LANES / 4;
pub const LINE_BYTES: usize = 64;

/// 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits.
pub(in crate::cpu) const MAGIC: f32 = 12_582_912.0;

/// Work that is compiled once for each instruction set. `run` must be `#[inline(always)]`.
pub trait Kernel {
    type Output;

    fn run<S: Lanes>(self) -> Self::Output;
}

/// Sixteen f32 lanes.
///
/// # Safety
/// Every method must only run where the instruction set was detected ([`dispatch`](super::dispatch) ensures this).
/// Pointers must be valid for sixteen elements, at any alignment.
pub trait Lanes: Copy + 'static {
    type V: Copy;
    /// Sixteen 32-bit words: pairs of bf16 (the first in the low half) or quads of bytes.
    type W: Copy;

    /// Machine registers per vector; AVX-512 has 32 of them, others 16.
    const REGISTERS_PER_VECTOR: usize;
    /// Whether [`Self::dot_pairs`] reads bf16 pairs directly. If not, packing widens them once, which is faster.
    const BF16_PAIRS: bool;
    /// Whether [`Self::dot_quads`] reads bytes directly. If not, packing widens them once, which is faster.
    const BYTE_QUADS: bool;

    /// Whether float products with many rows use strips: [`Self::multiply_strip`] and [`Self::widen_strip`].
    const STRIPS: bool = false;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    unsafe fn load_f16(p: *const f16) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`: `b` if either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: `b` if either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Adds `bits(n) << 23` to the bits of `v`: multiplies by 2^k where the low bits of `n` hold k.
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V;

    /// Writes sixteen values rounded to the nearest bf16, ties to even.
    unsafe fn store_bf16(p: *mut bf16, v: Self::V);

    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        let mut narrow = [bf16::ZERO; LANES];
        // SAFETY: `narrow` holds sixteen values; the caller detected the instruction set.
        unsafe {
            Self::store_bf16(narrow.as_mut_ptr(), v);
            Self::load_bf16(narrow.as_ptr())
        }
    }

    /// Rounds two vectors to bf16 and packs the values in this order, two to a word, for [`Lanes::dot_pairs`]: values
    /// that it treats as zero may become zero.
    #[inline(always)]
    unsafe fn pair_bf16(low: Self::V, high: Self::V) -> Self::W {
        let mut narrow = [bf16::ZERO; 2 * LANES];
        // SAFETY: `narrow` holds twice sixteen values; the caller detected the instruction set.
        unsafe {
            Self::store_bf16(narrow.as_mut_ptr(), low);
            Self::store_bf16(narrow.as_mut_ptr().wrapping_add(LANES), high);
            Self::load_words(narrow.as_ptr().cast())
        }
    }

    /// Packs the lowest byte of each value of four vectors in this order, four to a word.
    #[inline(always)]
    unsafe fn low_bytes(values: [Self::V; 4]) -> Self::W {
        let mut bits = [0u32; 4 * LANES];
        // SAFETY: the arrays cover the reads and writes; the caller detected the instruction set.
        unsafe {
            for (i, values) in values.into_iter().enumerate() {
                let to = bits.as_mut_ptr().wrapping_add(i * LANES);
                Self::store_words(to, Self::to_words(values));
            }
            let bytes = bits.map(|bits| bits as u8);
            Self::load_words(bytes.as_ptr().cast())
        }
    }

    unsafe fn splat_word(word: u32) -> Self::W;
    /// The value at `p`, which is aligned, in all lanes.
    unsafe fn splat_at(p: *const f32) -> Self::V;
    /// The word at `p`, which is aligned, in all lanes.
    #[inline(always)]
    unsafe fn splat_word_at(p: *const u32) -> Self::W {
        // SAFETY: the caller guarantees the same.
        unsafe { Self::to_words(Self::splat_at(p.cast())) }
    }
    unsafe fn load_words(p: *const u32) -> Self::W;
    /// Adds to each lane the two products of its pairs: of the first elements, and of the second elements.
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V;
    /// Adds to each word, an i32, the four products of the signed bytes of `a` with the unsigned bytes of `b`.
    unsafe fn dot_quads(acc: Self::W, a: Self::W, b: Self::W) -> Self::W;
    unsafe fn and(a: Self::W, b: Self::W) -> Self::W;
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W;
    /// Shifts each word to higher bits by `n`, below 32.
    unsafe fn shift_left(words: Self::W, n: u32) -> Self::W;
    /// Shifts each word to lower bits by `n`, below 32; zeros fill the high bits.
    unsafe fn shift_right(words: Self::W, n: u32) -> Self::W;
    /// Looks up the value of each byte; bytes are below 16.
    unsafe fn look_up(values: &[u8; 16], bytes: Self::W) -> Self::W;
    /// The low bytes of the i16 halves, as signed numbers.
    unsafe fn extend_bytes(words: Self::W) -> Self::W;
    /// The high bytes of the i16 halves, as signed numbers.
    #[inline(always)]
    unsafe fn high_bytes(words: Self::W) -> Self::W {
        // SAFETY: only lane arithmetic; the caller detected the instruction set.
        unsafe { Self::extend_bytes(Self::shift_right(words, 8)) }
    }
    unsafe fn sub_words(a: Self::W, b: Self::W) -> Self::W;
    #[inline(always)]
    unsafe fn add_words(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only lane arithmetic; the caller detected the instruction set.
        unsafe { Self::sub_words(a, Self::sub_words(Self::splat_word(0), b)) }
    }
    /// Adds to each word, an i32, the products of the i16 halves of `a` and `b`.
    unsafe fn dot_shorts(acc: Self::W, a: Self::W, b: Self::W) -> Self::W;

    /// Whether sums of codes are 16-bit until they are scaled, which limits the number of terms.
    const NARROW_SUMS: bool;
    /// Adds to sums of codes the four products of each word's signed bytes in `row` with the unsigned bytes in `codes`.
    /// With [`Self::NARROW_SUMS`], each half of a word sums two of the products, which must fit into i16.
    unsafe fn dot_codes(sums: Self::W, row: Self::W, codes: Self::W) -> Self::W;
    /// Adds sums of codes, multiplied by scales, to words of i32.
    unsafe fn add_scaled(acc: Self::W, sums: Self::W, scales: Self::W) -> Self::W;
    /// The low i16 of each word, as [`Self::add_scaled`] takes scales.
    unsafe fn low_scales(pairs: Self::W) -> Self::W;
    /// The high i16 of each word, as [`Self::add_scaled`] takes scales.
    unsafe fn high_scales(pairs: Self::W) -> Self::W;

    unsafe fn words_to_f32(words: Self::W) -> Self::V;
    unsafe fn to_words(v: Self::V) -> Self::W;
    unsafe fn from_words(words: Self::W) -> Self::V;
    unsafe fn store_words(p: *mut u32, words: Self::W);
    /// Transposes sixteen rows: word i of row j becomes word j of row i.
    unsafe fn transpose(rows: [Self::W; LANES]) -> [Self::W; LANES];
    /// Transposes four rows: a vector holds four columns, each with word i of all rows.
    #[inline(always)]
    unsafe fn transpose_four(rows: [Self::W; FOUR]) -> [Self::W; FOUR] {
        // SAFETY: the caller guarantees the same.
        unsafe { transpose_some::<Self, FOUR>(rows) }
    }
    /// Transposes eight rows: a vector holds two columns.
    #[inline(always)]
    unsafe fn transpose_eight(rows: [Self::W; EIGHT]) -> [Self::W; EIGHT] {
        // SAFETY: the caller guarantees the same.
        unsafe { transpose_some::<Self, EIGHT>(rows) }
    }
    /// Pairs the 32 bf16 of `low`, in the low halves, with the 32 of `high`. Words 4 q to 4 q + 3 hold the pairs 8 q to
    /// 8 q + 3 in the first vector, and 8 q + 4 to 8 q + 7 in the second.
    unsafe fn zip_bf16(low: Self::W, high: Self::W) -> (Self::W, Self::W);
    /// Joins the bytes of four rows into words, with the first row's byte lowest. The first two vectors hold the first
    /// 32 bytes of each row, the others the last 32: quarter `c` of vector `2 h + k` holds the four bytes from `32 h +
    /// 16 (c % 2) + 8 k + 4 (c / 2)` on.
    #[inline(always)]
    unsafe fn zip_bytes(rows: [Self::W; 4]) -> [Self::W; 4] {
        let (mut from, mut to) = ([[0u32; LANES]; 4], [[0u32; LANES]; 4]);
        // SAFETY: both hold four times sixteen words; the caller detected the instruction set.
        unsafe {
            for (words, row) in from.iter_mut().zip(rows) {
                Self::store_words(words.as_mut_ptr(), row);
            }
            for (k, quads) in to.iter_mut().enumerate() {
                for (i, quad) in quads.iter_mut().enumerate() {
                    let (half, quarter) = (k / 2, i / 4);
                    let word = (2 * half + quarter % 2) * 4 + 2 * (k % 2) + quarter / 2;
                    let bytes = from.map(|row| (row[word] >> (8 * (i % 4))) as u8);
                    *quad = u32::from_le_bytes(bytes);
                }
            }
            to.map(|quads| Self::load_words(quads.as_ptr()))
        }
    }
    /// Interleaves quarters (four lanes) of `a` and `b`: of their first halves, and of their second halves.
    #[inline(always)]
    unsafe fn zip_quarters(a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        let (mut from, mut to) = ([[0f32; LANES]; 2], [0f32; 2 * LANES]);
        // SAFETY: both hold twice sixteen values; the caller detected the instruction set.
        unsafe {
            Self::store(from[0].as_mut_ptr(), a);
            Self::store(from[1].as_mut_ptr(), b);
            for (i, to) in to.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&from[i % 2][i / 2 * 4..][..4]);
            }
            (
                Self::load(to.as_ptr()),
                Self::load(to.as_ptr().wrapping_add(LANES)),
            )
        }
    }
    /// Like [`Self::store_bf16`], but a subnormal value may become zero.
    #[inline(always)]
    unsafe fn store_bf16_normal(p: *mut bf16, v: Self::V) {
        // SAFETY: the caller guarantees the same.
        unsafe { Self::store_bf16(p, v) }
    }

    /// Any address is valid.
    #[inline(always)]
    unsafe fn prefetch<T>(_p: *const T) {}

    /// Prefetches into L1, for use soon; any address is valid.
    #[inline(always)]
    unsafe fn prefetch_near<T>(_p: *const T) {}

    /// Any address is valid.
    #[inline(always)]
    unsafe fn prefetch_write<T>(_p: *const T) {}

    #[inline(always)]
    unsafe fn prefetch_all_to_write<T>(p: *const T, len: usize) {
        for at in (0..len * size_of::<T>()).step_by(LINE_BYTES) {
            let line = p.cast::<u8>().wrapping_add(at);
            // SAFETY: the caller guarantees the same.
            unsafe { Self::prefetch_write(line) };
        }
    }

    /// Multiplies `M` rows with a strip of f32 weights into rows of sums, in ascending inputs with fused multiply-adds.
    /// See `strips`.
    ///
    /// # Safety
    /// The product's `rows` are valid for `M * inputs` values, its `strip` for `STRIP` values of each input, and its
    /// `sums` for writing `STRIP` values of each of `M` rows, and for reading them unless it `begins`; the instruction
    /// set was detected, and has [`Self::STRIPS`]. `STRIP` is `WIDE_STRIP` or `NARROW_STRIP`.
    #[inline(always)]
    unsafe fn multiply_strip<const M: usize, const STRIP: usize>(_product: StripProduct) {
        unreachable!("this instruction set has no strip products");
    }

    /// Fills a wide strip with inputs from pairs of bf16: eight words of each half of a panel, with `PANEL` words from
    /// pair to pair. Multiplies `STRIP_ROWS` rows with the strip as [`Self::multiply_strip`] does.
    ///
    /// # Safety
    /// As [`Self::multiply_strip`]; each half is valid for the product's inputs, an even number, and the strip for
    /// writing.
    #[inline(always)]
    unsafe fn widen_strip(_product: StripProduct, _halves: [*const u32; 3]) {
        unreachable!("this instruction set has no strip products");
    }

    /// Sum of the lanes: lane i with i+8, then i+4, i+2, i+1.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let mut a = [0f32; LANES];
        // SAFETY: `a` holds sixteen values; the caller detected the instruction set.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                a[i] += a[i + width];
            }
        }
        a[0]
    }

    #[inline(always)]
    unsafe fn max_lane(v: Self::V) -> f32 {
        let mut a = [0f32; LANES];
        // SAFETY: as in `sum`.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// 2^x within two units in the last place; x is clamped to [-126, 126], NaN stays NaN, 2^0 is exactly 1.
    #[inline(always)]
    unsafe fn exp2(x: Self::V) -> Self::V {
        // SAFETY: only lane arithmetic; the caller detected the instruction set.
        unsafe { Self::exp2_at_most_126(Self::min(Self::splat(126.0), x)) }
    }

    /// [`Self::exp2`] for x up to 126.
    // The second coefficient is near ln 2, but is not ln 2.
    #[allow(clippy::approx_constant)]
    #[inline(always)]
    unsafe fn exp2_at_most_126(x: Self::V) -> Self::V {
        // SAFETY: only lane arithmetic; the caller detected the instruction set.
        unsafe {
            let x = Self::max(Self::splat(-126.0), x);
            let shifted = Self::add(x, Self::splat(MAGIC));
            let r = Self::sub(x, Self::sub(shifted, Self::splat(MAGIC)));
            // The minimax polynomial of 2^r on [-1/2, 1/2] that is 1 at 0: error 1e-7.
            let mut p = Self::splat(1.326_472_7e-3);
            for c in [
                9.671_513e-3,
                5.550_733_6e-2,
                2.402_224_2e-1,
                6.931_47e-1,
                1.0,
            ] {
                p = Self::mul_add(p, r, Self::splat(c));
            }
            Self::scale_by_pow2(p, shifted)
        }
    }

    /// tanh(x) within four units in the last place, from -1 to 1; NaN stays NaN.
    ///
    /// # Source
    /// The quotient of polynomials of degree 13 and 6 of Eigen's `ptanh`, which is 1 except for rounding at the bound
    /// that x is clamped to.
    #[inline(always)]
    unsafe fn tanh(x: Self::V) -> Self::V {
        const BOUND: f32 = 7.998_811_7;
        // SAFETY: only lane arithmetic; the caller detected the instruction set.
        unsafe {
            let clamped =
                |bound: f32, v| Self::min(Self::splat(bound), Self::max(Self::splat(-bound), v));
            let x = clamped(BOUND, x);
            let square = Self::mul(x, x);
            let mut p = Self::splat(-2.760_768_5e-16);
            for c in [
                2.000_188e-13,
                -8.604_672e-11,
                5.122_297_3e-8,
                1.485_722_4e-5,
                6.372_619_4e-4,
                4.893_524_6e-3,
            ] {
                p = Self::mul_add(p, square, Self::splat(c));
            }
            let mut q = Self::splat(1.198_258_4e-6);
            for c in [1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3] {
                q = Self::mul_add(q, square, Self::splat(c));
            }
            clamped(1.0, Self::div(Self::mul(x, p), q))
        }
    }

    /// e^x within two units in the last place; x is clamped to [-87.3, 88.3], NaN stays NaN.
    ///
    /// # Source
    /// The usual reduction x = n ln 2 + r with a degree-6 polynomial in r (Cephes `expf` coefficients).
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        // SAFETY: only lane arithmetic; the caller detected the instruction set.
        unsafe {
            let x = Self::min(Self::splat(88.3), Self::max(Self::splat(-87.3), x));
            let shifted =
                Self::mul_add(x, Self::splat(std::f32::consts::LOG2_E), Self::splat(MAGIC));
            let n = Self::sub(shifted, Self::splat(MAGIC));
            let r = Self::mul_add(n, Self::splat(-0.693_359_4), x);
            let r = Self::mul_add(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_2e-4);
            for c in [
                1.398_2e-3,
                8.333_452e-3,
                4.166_579_6e-2,
                1.666_666_5e-1,
                0.5,
            ] {
                p = Self::mul_add(p, r, Self::splat(c));
            }
            let p = Self::add(Self::mul_add(Self::mul(r, r), p, r), Self::splat(1.0));
            Self::scale_by_pow2(p, shifted)
        }
    }
}

/// Generic transpose of `N` rows: words i of all rows become adjacent.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn transpose_some<S: Lanes, const N: usize>(rows: [S::W; N]) -> [S::W; N] {
    // SAFETY: `words` has space for all stores of sixteen words; the caller detected the instruction set.
    unsafe {
        let mut all = [S::splat_word(0); LANES];
        all[..N].copy_from_slice(&rows);
        let mut words = [0u32; LANES * (LANES + 1)];
        for (i, column) in S::transpose(all).into_iter().enumerate() {
            S::store_words(words[i * N..].as_mut_ptr(), column);
        }
        std::array::from_fn(|i| S::load_words(words[i * LANES..].as_ptr()))
    }
}
