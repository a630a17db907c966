//! Running state of an online softmax: weighted sum of values, sum of weights, maximum score.
//!
//! A record is `[weighted values: width][sum of weights: 16 lanes][maximum: first of 16 lanes]`. Values have the order
//! of packed operands. Scores and maxima are base-2 logarithms.

use super::super::simd::{LANES, Lanes};
use super::kv_element::KvElement;
use super::scales::Scales;
use super::seen::{BLOCK, KeyRange};

/// Number of f32 in a record whose values are padded to `width`.
pub const fn record_len(width: usize) -> usize {
    width + 2 * LANES
}

pub fn clear(record: &mut [f32]) {
    let max = record.len() - LANES;
    record.fill(0.0);
    record[max] = f32::MIN;
}

/// Masks, `[unseen: BLOCK, seen: BLOCK, unseen: BLOCK]`: upper limits of scores, and factors of weights.
static LIMITS: [f32; 3 * BLOCK] = bounds(f32::NEG_INFINITY, f32::INFINITY);
static FACTORS: [f32; 3 * BLOCK] = bounds(0.0, 1.0);

const fn bounds(no: f32, yes: f32) -> [f32; 3 * BLOCK] {
    let mut bounds = [no; 3 * BLOCK];
    let mut i = BLOCK;
    while i < 2 * BLOCK {
        bounds[i] = yes;
        i += 1;
    }
    bounds
}

pub const VECTORS: usize = BLOCK / LANES;
/// Minimum number of rows whose maxima are computed together, by a transposition.
const MANY_ROWS: usize = 8;

/// Scores of a block to turn into weights, and the records that receive their sums and maxima.
///
/// # Shapes
/// `scores: [rows, BLOCK]`, `weights: [rows, weight_words]`, `rescale: [rows]`, `records: [rows, record_len]`. All
/// are padded to multiples of sixteen rows, except the records.
pub struct Fold {
    pub scores: *const f32,
    pub weights: *mut u32,
    pub rescale: *mut f32,
    pub records: *mut f32,
    pub record_len: usize,
    /// Positive factor of the scores.
    pub scale: f32,
    pub scales: Scales,
}

impl Fold {
    /// # Safety
    /// The pointers are valid for the shapes; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn run<F: KvElement, S: Lanes>(&self, seen: &[KeyRange]) {
        for (i, seen) in seen.chunks(LANES).enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { self.run_rows::<F, S>(i * LANES, seen) };
        }
    }

    /// Processes up to sixteen rows together, which hides the latency of a row's maximum and rescaling.
    #[inline(always)]
    unsafe fn run_rows<F: KvElement, S: Lanes>(&self, first: usize, seen: &[KeyRange]) {
        let max_at = self.record_len - LANES;
        let record = |row: usize| self.records.wrapping_add((first + row) * self.record_len);
        let (mut old, mut new) = ([f32::MIN; LANES], [0f32; LANES]);
        let mut minus_max = [0f32; LANES];
        // SAFETY: whole vectors of the caller's operands and of sixteen values.
        unsafe {
            let max = self.maxima::<S>(first, seen);
            for row in 0..seen.len() {
                old[row] = *record(row).wrapping_add(max_at);
            }
            let old = S::load(old.as_ptr());
            let max = S::max(S::mul(max, S::splat(self.scale)), old);
            S::store(new.as_mut_ptr(), max);
            S::store(minus_max.as_mut_ptr(), S::sub(S::splat(0.0), max));
            let rescale = S::exp2_at_most_126(S::sub(old, max));
            S::store(self.rescale.wrapping_add(first), rescale);
            for (row, seen) in seen.iter().enumerate() {
                let minus_max = S::splat_at(minus_max.as_ptr().wrapping_add(row));
                let mut v = self.load::<S>(first + row, *seen);
                for i in 0..VECTORS {
                    v[i] = S::exp2_at_most_126(S::mul_add(v[i], S::splat(self.scale), minus_max));
                }
                if !seen.is_all() {
                    // `exp2` clamps its result above zero, but unseen keys must weigh exactly zero.
                    let [start, end] = seen.bounds_in(&FACTORS);
                    for i in 0..VECTORS {
                        let factor = S::mul(
                            S::load(start.wrapping_add(i * LANES)),
                            S::load(end.wrapping_add(i * LANES)),
                        );
                        v[i] = S::mul(v[i], factor);
                    }
                }
                let mut total = v[0];
                for i in 1..VECTORS {
                    total = S::add(total, v[i]);
                }
                let sum = record(row).wrapping_add(max_at - LANES);
                let rescale = S::splat_at(self.rescale.wrapping_add(first + row));
                S::store(sum, S::mul_add(S::load(sum), rescale, total));
                *record(row).wrapping_add(max_at) = new[row];
                F::write_weights::<S>(self, first + row, &v);
            }
        }
    }

    #[inline(always)]
    unsafe fn maxima<S: Lanes>(&self, first: usize, seen: &[KeyRange]) -> S::V {
        // SAFETY: whole vectors of the caller's operands and of sixteen values.
        unsafe {
            let mut rows = [S::to_words(S::splat(f32::NEG_INFINITY)); LANES];
            let mut few = [f32::NEG_INFINITY; LANES];
            for (row, seen_of_row) in seen.iter().enumerate() {
                let v = self.load::<S>(first + row, *seen_of_row);
                let mut max = v[0];
                for i in 1..VECTORS {
                    max = S::max(max, v[i]);
                }
                if seen.len() < MANY_ROWS {
                    few[row] = S::max_lane(max);
                } else {
                    rows[row] = S::to_words(max);
                }
            }
            if seen.len() < MANY_ROWS {
                return S::load(few.as_ptr());
            }
            let columns = S::transpose(rows);
            let mut max = S::from_words(columns[0]);
            for i in 1..LANES {
                max = S::max(max, S::from_words(columns[i]));
            }
            max
        }
    }

    /// Loads a row's scores; those of unseen keys, which are arbitrary, become negative infinity.
    #[inline(always)]
    unsafe fn load<S: Lanes>(&self, row: usize, seen: KeyRange) -> [S::V; VECTORS] {
        let scores = self.scores.wrapping_add(row * BLOCK);
        // SAFETY: whole vectors of the caller's operands and of the bounds.
        unsafe {
            let mut v = [S::load(scores); VECTORS];
            for i in 1..VECTORS {
                v[i] = S::load(scores.wrapping_add(i * LANES));
            }
            if !seen.is_all() {
                let [start, end] = seen.bounds_in(&LIMITS);
                for i in 0..VECTORS {
                    let limit = S::min(
                        S::load(start.wrapping_add(i * LANES)),
                        S::load(end.wrapping_add(i * LANES)),
                    );
                    v[i] = S::min(v[i], limit);
                }
            }
            v
        }
    }
}

impl KeyRange {
    /// Starts of two block-sized windows of `bounds`: to mask the keys before the seen keys, and the keys after.
    #[inline(always)]
    fn bounds_in(self, bounds: &'static [f32; 3 * BLOCK]) -> [*const f32; 2] {
        let at = |offset: usize| bounds[offset..offset + BLOCK].as_ptr();
        [
            at(BLOCK - self.start as usize),
            at(2 * BLOCK - self.end as usize),
        ]
    }
}

/// Merges the record of a span into that of the spans before it.
///
/// # Safety
/// The instruction set of `S` was detected.
///
/// # Panics
/// If the records differ in length.
#[inline(always)]
pub unsafe fn merge<S: Lanes>(total: &mut [f32], span: &[f32]) {
    assert_eq!(total.len(), span.len(), "records must have equal lengths");
    let max_at = span.len() - LANES;
    let (old, new) = (total[max_at], span[max_at]);
    // An empty span changes nothing; a span with a NaN score has a NaN sum, so it is merged.
    if new == f32::MIN && span[max_at - LANES..max_at].iter().all(|sum| *sum == 0.0) {
        return;
    }
    let max = old.max(new);
    // SAFETY: whole vectors below the records' ends; the caller detected the instruction set.
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

/// Writes the weighted mean of the values, in the order of their elements. A sink is a score without a value: it only
/// adds to the sum.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn finish<F: KvElement, S: Lanes>(record: &[f32], sink: Option<f32>, out: &mut [f32]) {
    let width = record.len() - 2 * LANES;
    // SAFETY: the record holds whole chunks, followed by sixteen lanes of sums.
    unsafe {
        let sum = S::sum(S::load(record.as_ptr().wrapping_add(width)));
        let inverse = match sink {
            None => S::splat(1.0 / sum),
            Some(sink) => {
                let max = record[record.len() - LANES];
                let both = max.max(sink);
                let own = S::exp2(S::splat(max - both));
                let sink = S::exp2(S::splat(sink - both));
                S::div(own, S::add(S::mul(S::splat(sum), own), sink))
            }
        };
        F::mean::<S>(&record[..width], inverse, out);
    }
}
