//! The running softmax of a query: weighted values, sum and maximum.
//!
//! A record is `[values: width, in the order of Format::place][sum: 16 lanes][maximum: 16, the first counts]`; the sum of weights is kept in lanes and
//! decays like one more vector of values. Scores and maxima are logarithms to base 2.

use super::super::simd::{LANES, Lanes};
use super::format::Format;
use super::{BLOCK, Seen};

/// f32 of a record of heads padded to `width`.
pub const fn record_len(width: usize) -> usize {
    width + 2 * LANES
}

/// Makes a record that has seen nothing.
pub fn clear(record: &mut [f32]) {
    let max = record.len() - LANES;
    record.fill(0.0);
    record[max] = f32::NEG_INFINITY;
}

/// Turns a query's scores of a block into weights and takes them into the sum and maximum of its record. Returns the
/// decay of the values. `scale` is above zero.
///
/// # Safety
/// `scores` is valid for `BLOCK` f32, `weights` for `BLOCK / PER_WORD` words; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn fold<F: Format, S: Lanes>(
    scores: *mut f32,
    weights: *mut u32,
    seen: Seen,
    scale: f32,
    record: &mut [f32],
) -> f32 {
    const VECTORS: usize = BLOCK / LANES;
    let width = record.len() - 2 * LANES;
    // SAFETY: whole blocks of scores and weights and the tail of a record; the rest is the caller's promise.
    unsafe {
        if seen.is_empty() {
            for vector in 0..VECTORS {
                F::write::<S>(
                    weights.wrapping_add(vector * LANES / F::PER_WORD),
                    S::splat(0.0),
                );
            }
            return 1.0;
        }
        let at = |vector: usize| scores.wrapping_add(vector * LANES);
        // What is not seen may be anything, NaN too.
        fill_unseen(scores, seen, f32::NEG_INFINITY);
        let mut v = [S::load(scores); VECTORS];
        let mut max = v[0];
        for i in 1..VECTORS {
            v[i] = S::load(at(i));
            max = S::max(max, v[i]);
        }
        let old_max = record[width + LANES];
        let new_max = old_max.max(S::max_lane(max) * scale);
        for i in 0..VECTORS {
            let below_max = S::mul_add(v[i], S::splat(scale), S::splat(-new_max));
            v[i] = S::exp2_falling(below_max);
        }
        if !seen.is_all() {
            // `exp2` clamps: what is not seen must weigh exactly nothing.
            for i in 0..VECTORS {
                S::store(at(i), v[i]);
            }
            fill_unseen(scores, seen, 0.0);
            for i in 0..VECTORS {
                v[i] = S::load(at(i));
            }
        }
        let decay = if new_max == old_max {
            1.0
        } else {
            S::max_lane(S::exp2(S::splat(old_max - new_max)))
        };
        let sum = record.as_mut_ptr().wrapping_add(width);
        let mut total = v[0];
        for i in 1..VECTORS {
            total = S::add(total, v[i]);
        }
        S::store(sum, S::mul_add(S::load(sum), S::splat(decay), total));
        record[width + LANES] = new_max;
        for i in 0..VECTORS {
            F::write_normal::<S>(weights.wrapping_add(i * LANES / F::PER_WORD), v[i]);
        }
        decay
    }
}

#[inline(always)]
unsafe fn fill_unseen(scores: *mut f32, seen: Seen, value: f32) {
    if !seen.is_all() {
        // SAFETY: the caller's pointer is valid for a block.
        let scores = unsafe { std::slice::from_raw_parts_mut(scores, BLOCK) };
        scores[..seen.start as usize].fill(value);
        scores[seen.end as usize..].fill(value);
    }
}

/// Takes the record of a span into that of the spans before it.
///
/// # Safety
/// The instruction set of `S` was detected.
///
/// # Panics
/// If the records differ in length.
#[inline(always)]
pub unsafe fn merge<S: Lanes>(total: &mut [f32], span: &[f32]) {
    assert_eq!(total.len(), span.len(), "records of one shape");
    let max_at = span.len() - LANES;
    let (old, new) = (total[max_at], span[max_at]);
    // A NaN in the scores leaves its trace in the sum.
    if new == f32::NEG_INFINITY && span[max_at - LANES..max_at].iter().all(|sum| *sum == 0.0) {
        return;
    }
    let max = old.max(new);
    // SAFETY: whole vectors below the records' ends; the instruction set is the caller's promise.
    unsafe {
        let old = S::exp2(S::splat(old - max));
        let new = S::exp2(S::splat(new - max));
        for at in (0..max_at).step_by(LANES) {
            let p = total.as_mut_ptr().wrapping_add(at);
            let v = S::mul(S::load(p), old);
            S::store(
                p,
                S::mul_add(S::load(span.as_ptr().wrapping_add(at)), new, v),
            );
        }
    }
    total[max_at] = max;
}

/// Writes the weighted mean of the values, in the order of their elements.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn finish<F: Format, S: Lanes>(record: &[f32], out: &mut [f32]) {
    const PAIR: usize = 2 * LANES;
    let width = record.len() - 2 * LANES;
    // SAFETY: the record holds whole pairs of vectors and, behind them, sixteen lanes of sums; `mean` holds a pair.
    unsafe {
        let sum = S::splat(S::sum(S::load(record.as_ptr().wrapping_add(width))));
        for (pair, out) in out.chunks_mut(PAIR).enumerate() {
            let mut mean = [0.0; PAIR];
            for at in [0, LANES] {
                let values = S::load(record.as_ptr().wrapping_add(pair * PAIR + at));
                // A zero's sign may depend on what was skipped.
                let values = S::add(S::div(values, sum), S::splat(0.0));
                S::store(mean.as_mut_ptr().wrapping_add(at), values);
            }
            for (quad, out) in out.chunks_mut(4).enumerate() {
                out.copy_from_slice(&mean[F::place(quad)..][..out.len()]);
            }
        }
    }
}
