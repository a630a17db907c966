//! Quantisation of queries and softmax weights to 16-bit integers, for products with int8 keys and values.

use super::super::seen::BLOCK;
use super::super::state::{Fold, VECTORS};
use super::{CHUNK, CHUNK_WORDS, HALF, HALF_WORDS, QUAD};
use crate::cpu::simd::{LANES, Lanes, MAGIC};

const MAX: f32 = i16::MAX as f32;
const MAX_SUM: usize = i32::MAX as usize;
const MAX_CODE: usize = i8::MAX as usize;
/// Magnitudes below this count as zero: their inverse might be infinite.
const LEAST: f32 = 1e-30;
const LOW: u32 = 0xffff;

const _: () = assert!(BLOCK * MAX_CODE * MAX as usize <= MAX_SUM);

/// The largest magnitude of a query's integers for which no sum of products with codes overflows i32.
fn query_max(key_dim: usize) -> f32 {
    MAX.min((MAX_SUM / (MAX_CODE * key_dim)) as f32)
}

/// Writes a query as words for [`super`]'s keys and returns its scale: NaN if the query holds NaN or infinity.
///
/// # Safety
/// `to` is valid for whole chunks; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn write_query<S: Lanes>(query: &[f32], to: *mut u32) -> f32 {
    let magnitudes = query.iter().map(|value| value.abs().to_bits());
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    let max = query_max(query.len());
    let (scale, inverse) = match largest {
        largest if !largest.is_finite() => (f32::NAN, 0.0),
        largest if largest < LEAST => (0.0, 0.0),
        largest => (largest / max, max / largest),
    };
    for (chunk, values) in query.chunks(CHUNK).enumerate() {
        let mut padded = [0f32; CHUNK];
        padded[..values.len()].copy_from_slice(values);
        let mut codes = [0u32; CHUNK];
        // SAFETY: whole vectors of both; the caller detected the instruction set.
        unsafe {
            for at in (0..CHUNK).step_by(LANES) {
                let values = S::load(padded.as_ptr().wrapping_add(at));
                S::store_words(
                    codes.as_mut_ptr().wrapping_add(at),
                    round::<S>(values, inverse),
                );
            }
        }
        let mut words = [0u32; CHUNK_WORDS];
        for (words, codes) in words.chunks_exact_mut(2).zip(codes.chunks_exact(QUAD)) {
            words[0] = codes[0] & LOW | codes[2] << 16;
            words[1] = codes[1] & LOW | codes[3] << 16;
        }
        let to = to.wrapping_add(chunk * CHUNK_WORDS);
        // SAFETY: the caller guarantees space for whole chunks.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), to, CHUNK_WORDS) };
    }
    scale
}

/// Writes a row's softmax weights, times the scales of the values, as words for [`super`]'s values. The products are
/// quantised separately for each group of a value.
///
/// # Safety
/// The pointers of the fold are valid for the row; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn write_weights<S: Lanes>(fold: &Fold, row: usize, weights: &[S::V; VECTORS]) {
    let n_groups = fold.scales.value_groups;
    for group in 0..n_groups {
        let scales = fold.scales.values.wrapping_add(group * BLOCK);
        let index = row * n_groups + group;
        let to = fold.weights.wrapping_add(index * BLOCK / 2);
        // SAFETY: whole vectors of scales, and space for a block's weights; the caller detected the instruction set.
        unsafe {
            let mut scaled = *weights;
            for i in 0..VECTORS {
                scaled[i] = S::mul(weights[i], S::load(scales.wrapping_add(i * LANES)));
            }
            let mut zero_or_nan = 0.0;
            if !fold.scales.are_finite {
                zero_or_nan = zero_unseen::<S>(weights, &mut scaled);
            }
            let mut max = scaled[0];
            for i in 1..VECTORS {
                max = S::max(max, scaled[i]);
            }
            let max = S::max_lane(max);
            let (scale, inverse) = if max > LEAST {
                (max / MAX, MAX / max)
            } else {
                (0.0, 0.0)
            };
            *fold.scales.weights.wrapping_add(index) = scale + zero_or_nan;
            for half in 0..BLOCK / HALF {
                let low = S::splat_word(LOW);
                for odd in 0..2 {
                    let at = half * (HALF / LANES) + odd;
                    let first = S::and(round::<S>(scaled[at], inverse), low);
                    let second = S::shift_left(round::<S>(scaled[at + 2], inverse), 16);
                    let to = to.wrapping_add(half * HALF_WORDS + odd * LANES);
                    S::store_words(to, S::or(first, second));
                }
            }
        }
    }
}

/// Zeroes the scaled weights of keys whose weight is zero, since a NaN scale would make them NaN; returns zero, or NaN
/// if another scaled weight is not finite.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn zero_unseen<S: Lanes>(weights: &[S::V; VECTORS], scaled: &mut [S::V; VECTORS]) -> f32 {
    let mut zero_or_nan = 0.0;
    for (weights, scaled) in weights.iter().zip(scaled) {
        let (mut of_weights, mut lanes) = ([0f32; LANES], [0f32; LANES]);
        // SAFETY: both hold a vector; the caller detected the instruction set.
        unsafe {
            S::store(of_weights.as_mut_ptr(), *weights);
            S::store(lanes.as_mut_ptr(), *scaled);
            for (lane, weight) in lanes.iter_mut().zip(of_weights) {
                if weight == 0.0 {
                    *lane = 0.0;
                }
                zero_or_nan += *lane * 0.0;
            }
            *scaled = S::load(lanes.as_ptr());
        }
    }
    zero_or_nan
}

/// Values times a factor as integers, in the low half of each word.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn round<S: Lanes>(values: S::V, factor: f32) -> S::W {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let product = S::mul(values, S::splat(factor));
        S::to_words(S::add(product, S::splat(MAGIC)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sum_of_products_overflows_i32() {
        for key_dim in [1, 64, 128, 256, 516, 517, 576, 1024, 4096] {
            let sum = query_max(key_dim) as usize * MAX_CODE * key_dim;
            assert!(sum <= MAX_SUM, "{key_dim}: {sum}");
            assert!(query_max(key_dim) >= 4096.0, "{key_dim}");
        }
        assert_eq!(query_max(128), MAX);
    }
}
