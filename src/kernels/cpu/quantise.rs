//! Quantises activations to int8, with a scale for each row and group of inputs.

use super::block32::{self, BLOCK, TWO_BLOCKS};
use super::k_quants::{self, SUPER_BLOCK};
use super::panel::{INT8_GROUP, INT8_STEPS};
use super::row_source::{RowSource, scatter};
use super::simd::{LANES, Lanes};
use super::tile::shorts;

pub const INT8_VECTORS: usize = INT8_GROUP / LANES;
pub const INT8_WORDS: usize = INT8_STEPS / LANES;

/// Quantises each group of inputs by its largest magnitude; see [`super::format`] for the layout.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn pack_quads<S: Lanes>(rows: &[RowSource<'_>], inputs: usize, out: &mut [u32]) {
    let n = rows.len();
    for group in 0..inputs.div_ceil(INT8_GROUP) {
        let out = &mut out[group * (INT8_STEPS + 2) * n..];
        // SAFETY: guaranteed by the caller.
        unsafe {
            let words = quantise_group::<S>(rows, group, out);
            for (i, words) in words.into_iter().enumerate() {
                scatter::<S>(words, n, &mut out[(2 + i * LANES) * n..]);
            }
        }
    }
}

/// As [`pack_quads`], widened to i16.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn pack_shorts<S: Lanes>(rows: &[RowSource<'_>], inputs: usize, out: &mut [u32]) {
    let n = rows.len();
    for group in 0..inputs.div_ceil(INT8_GROUP) {
        let out = &mut out[group * (2 * INT8_STEPS + 2) * n..];
        // SAFETY: guaranteed by the caller.
        unsafe {
            let words = quantise_group::<S>(rows, group, out);
            for odd in 0..2 {
                for (i, mut words) in words.into_iter().enumerate() {
                    for words in &mut words[..n] {
                        *words = S::extend_bytes(shorts::<S>(*words, odd));
                    }
                    let first = 2 + odd * INT8_STEPS + i * LANES;
                    scatter::<S>(words, n, &mut out[first * n..]);
                }
            }
        }
    }
}

/// Quantises a group of inputs and writes its header; returns the quads of each row.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn quantise_group<S: Lanes>(
    rows: &[RowSource<'_>],
    group: usize,
    out: &mut [u32],
) -> [[S::W; LANES]; INT8_WORDS] {
    let n = rows.len();
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut words = [[S::splat_word(0); LANES]; INT8_WORDS];
        for (m, row) in rows.iter().enumerate() {
            let first = group * INT8_GROUP;
            let mut x = [S::splat(0.0); INT8_VECTORS];
            for (i, x) in x.iter_mut().enumerate() {
                *x = row.load::<S>(first + i * LANES);
            }
            let (scale, quads) = quantise::<S, INT8_VECTORS, INT8_WORDS>(x);
            let mut sums = S::splat_word(0);
            for i in 0..INT8_WORDS {
                words[i][m] = quads[i];
                sums = S::dot_quads(sums, quads[i], S::splat_word(0x0101_0101));
            }
            out[m] = scale.to_bits();
            // At most 128 * 128 * 127: exact in f32.
            out[n + m] = (-128.0 * S::sum(S::words_to_f32(sums))) as i32 as u32;
        }
        words
    }
}

/// Quantises each 32 inputs by their largest magnitude; see `super::block32`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn pack_blocks<S: Lanes>(rows: &[RowSource<'_>], inputs: usize, out: &mut [u32]) {
    const VECTORS: usize = 4;
    let n = rows.len();
    for block in 0..2 * inputs.div_ceil(TWO_BLOCKS) {
        let out = &mut out[block * block32::ROW_WORDS * n..][..block32::ROW_WORDS * n];
        for (m, row) in rows.iter().enumerate() {
            let mut words = [0u32; LANES];
            // SAFETY: guaranteed by the caller; `words` covers the writes.
            let scale = unsafe {
                let mut x = [S::splat(0.0); VECTORS];
                for (i, x) in x[..2].iter_mut().enumerate() {
                    *x = row.load::<S>(block * BLOCK + i * LANES);
                }
                let (scale, [quads]) = quantise::<S, VECTORS, 1>(x);
                S::store_words(words.as_mut_ptr(), quads);
                scale
            };
            let words = &words[..block32::BLOCK_STEPS];
            out[m] = scale.to_bits();
            out[n + m] = (-128 * words.iter().map(|word| sum_of_bytes(*word)).sum::<i32>()) as u32;
            for (step, word) in words.iter().enumerate() {
                out[(2 + step) * n + m] = *word;
            }
        }
    }
}

fn sum_of_bytes(word: u32) -> i32 {
    let bytes = word.to_le_bytes().map(|byte| i32::from(byte as i8));
    bytes.iter().sum()
}

/// Quantises each 256 inputs by their largest magnitude; see `super::k_quants`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn pack_super_blocks<S: Lanes>(rows: &[RowSource<'_>], inputs: usize, out: &mut [u32]) {
    const VECTORS: usize = SUPER_BLOCK / LANES;
    const WORDS: usize = VECTORS / 4;
    let n = rows.len();
    for block in 0..inputs.div_ceil(SUPER_BLOCK) {
        let out = &mut out[block * k_quants::ROW_WORDS * n..];
        // SAFETY: guaranteed by the caller; the arrays cover the writes.
        unsafe {
            let mut words = [[S::splat_word(0); LANES]; WORDS];
            for (m, row) in rows.iter().enumerate() {
                let mut x = [S::splat(0.0); VECTORS];
                for (i, x) in x.iter_mut().enumerate() {
                    *x = row.load::<S>(block * SUPER_BLOCK + i * LANES);
                }
                let (scale, quads) = quantise::<S, VECTORS, WORDS>(x);
                out[m] = scale.to_bits();
                let mut sums = [0u32; WORDS * LANES];
                for i in 0..WORDS {
                    words[i][m] = quads[i];
                    let ones = S::splat_word(0x0101_0101);
                    let sum = S::dot_quads(S::splat_word(0), quads[i], ones);
                    S::store_words(sums[i * LANES..].as_mut_ptr(), sum);
                }
                // A word is the sum of four inputs; four words give the sum of sixteen.
                for (j, sums) in sums.as_chunks::<8>().0.iter().enumerate() {
                    let of = |sums: &[u32]| sums.iter().fold(0u32, |a, b| a.wrapping_add(*b));
                    let pair = of(&sums[..4]) & 0xffff | of(&sums[4..]) << 16;
                    out[(1 + j) * n + m] = pair;
                }
            }
            for (i, words) in words.into_iter().enumerate() {
                let first = (1 + k_quants::SUB_BLOCKS + i * LANES) * n;
                scatter::<S>(words, n, &mut out[first..]);
            }
        }
    }
}

/// Returns `(scale, q)` with the bytes of `q` in -127..=127, four to a word, and `scale * q` nearest to `x`; NaN and
/// infinity give a NaN scale, so that results computed from them are NaN.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn quantise<S: Lanes, const VECTORS: usize, const WORDS: usize>(
    x: [S::V; VECTORS],
) -> (f32, [S::W; WORDS]) {
    // SAFETY: only lane arithmetic; the caller detected the instruction set.
    unsafe {
        let zero = S::splat(0.0);
        let (mut largest, mut not_finite) = (zero, zero);
        for x in x {
            largest = S::max(S::max(x, S::sub(zero, x)), largest);
            // A value that is not finite leaves a NaN here, which a maximum would drop.
            not_finite = S::mul_add(x, zero, not_finite);
        }
        let max = S::max_lane(largest) + S::sum(not_finite);
        let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
        // Adding 1.5 * 2^23 rounds half to even, and leaves the integer in the low bits.
        let (inverse, magic) = (S::splat(inverse), S::splat(12_582_912.0));
        let mut rounded = x;
        for x in &mut rounded {
            *x = S::add(S::mul(*x, inverse), magic);
        }
        let mut quads = [S::splat_word(0); WORDS];
        for (quads, x) in quads.iter_mut().zip(rounded.chunks_exact(4)) {
            *quads = S::low_bytes([x[0], x[1], x[2], x[3]]);
        }
        (max / 127.0, quads)
    }
}
