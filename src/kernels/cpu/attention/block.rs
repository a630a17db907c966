//! Attention of packed queries to one packed block of keys and values, accumulated by online softmax.

use std::ops::Range;

use super::super::caps::soft_cap;
use super::super::simd::{LANES, Lanes};
use super::kv_element::KvElement;
use super::product::Product;
use super::seen::{BLOCK, KeyRange};
use super::sizes::Sizes;
use super::space::CHUNK_ROWS;
use super::state::Fold;
use super::tile::Work;

/// Queries per run, a multiple of a product tile's rows. Keys that none of a run's queries see are skipped.
const RUN_ROWS: usize = 12;

fn runs(n_rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n_rows)
        .step_by(RUN_ROWS)
        .map(move |first| first..n_rows.min(first + RUN_ROWS))
}

/// End of the keys in a block that at least one of the rows sees.
#[inline(always)]
fn seen_end(seen: &[KeyRange]) -> usize {
    let ends = seen
        .iter()
        .map(|seen| if seen.is_empty() { 0 } else { seen.end });
    ends.max().unwrap_or(0) as usize
}

#[inline(always)]
pub fn cap_scores<S: Lanes>(scores: &mut [f32], scale: f32, cap: f32) {
    for scores in scores.chunks_exact_mut(LANES) {
        // SAFETY: sixteen values; `dispatch` detected the instruction set.
        unsafe {
            let scaled = S::mul(S::load(scores.as_ptr()), S::splat(scale));
            S::store(scores.as_mut_ptr(), soft_cap::<S>(scaled, cap));
        }
    }
}

impl<F: KvElement> Work<'_, F> {
    /// Records the part that each query sees of the block that begins at `start`.
    #[inline(always)]
    pub fn mark_seen(&mut self, sizes: Sizes, start: usize) {
        let step = self.step;
        let tokens = step
            .plan
            .tokens_of(&step.plan.tiles[self.item.tile as usize]);
        let rows = self.space.seen.chunks_exact_mut(sizes.group);
        for (rows, token) in rows.zip(tokens) {
            rows.fill(KeyRange::new(token.sees(step.plan.window), start));
        }
    }

    #[inline(always)]
    pub fn attend_block<S: Lanes>(
        &mut self,
        sizes: Sizes,
        head: usize,
        entry: usize,
        loaded: KeyRange,
    ) {
        let words = sizes.query_words;
        let masks_values = !F::SCALED && !self.unseen_values_are_finite(sizes, entry, loaded);
        let keys = self.space.blocks.keys(sizes, entry).as_ptr();
        let values = self.space.blocks.values::<F>(sizes, entry).as_ptr();
        for first in (0..sizes.rows).step_by(CHUNK_ROWS) {
            let n_rows = CHUNK_ROWS.min(sizes.rows - first);
            let row = head * sizes.rows + first;
            let space = &mut *self.space;
            let scores = Product {
                a: space.queries.as_ptr().wrapping_add(row * words),
                lda: words,
                b: keys,
                ldb: BLOCK,
                c: space.scores.as_mut_ptr(),
                ldc: BLOCK,
                depth: sizes.depth,
                rescale: std::ptr::null(),
                scales: space.scales(sizes, row),
            };
            let seen = &space.seen[first..first + n_rows];
            for rows in runs(n_rows) {
                let vectors = seen_end(&seen[rows.clone()]).div_ceil(LANES);
                // SAFETY: `fit` sized the buffers, `pack_block` filled them; `dispatch` detected the instructions.
                unsafe {
                    F::score::<S>(&scores.starting_at(rows.start), rows.len(), vectors);
                };
            }
            self.fold::<S>(sizes, head, first..first + n_rows);
            let space = &mut *self.space;
            let sums = Product {
                a: space.weights.as_ptr(),
                lda: sizes.weight_words,
                b: values,
                ldb: sizes.width,
                c: space.span.as_mut_ptr().wrapping_add(row * sizes.record),
                ldc: sizes.record,
                depth: F::value_depth(loaded.end as usize),
                rescale: space.rescale.as_ptr(),
                scales: space.scales(sizes, row),
            };
            if masks_values {
                self.weigh_seen::<S>(sizes, entry, first..first + n_rows, sums);
                continue;
            }
            let seen = &space.seen[first..first + n_rows];
            for rows in runs(n_rows) {
                let depth = F::value_depth(seen_end(&seen[rows.clone()]));
                if depth > 0 {
                    let sums = Product { depth, ..sums }.starting_at(rows.start);
                    // SAFETY: as above.
                    unsafe { F::weigh::<S>(&sums, rows.len(), sizes.width / LANES) };
                }
            }
        }
    }

    /// Whether all values that some query does not see are finite, so that a weight of zero cancels them.
    #[inline(always)]
    fn unseen_values_are_finite(&mut self, sizes: Sizes, entry: usize, loaded: KeyRange) -> bool {
        let covered = |seen: &KeyRange| {
            if seen.start <= loaded.start {
                seen.end as usize
            } else {
                0
            }
        };
        let covered = self.space.seen[..sizes.rows].iter().map(covered);
        let common_words = covered.min().unwrap_or(0) / F::PER_WORD;
        let n_words = (loaded.end as usize).div_ceil(F::PER_WORD);
        let values = self.space.blocks.values::<F>(sizes, entry);
        let partly_seen = &values[common_words * sizes.width..n_words * sizes.width];
        let is_finite = |all, word: &u32| all & F::is_finite(*word);
        partly_seen.iter().fold(true, is_finite)
    }

    #[inline(always)]
    pub fn fold<S: Lanes>(&mut self, sizes: Sizes, head: usize, rows: Range<usize>) {
        let first = (head * sizes.rows + rows.start) * sizes.record;
        let space = &mut *self.space;
        let heads = self.step.heads;
        let scale = match heads.score_cap {
            None => heads.scale,
            Some(cap) => {
                let scores = &mut space.scores[..rows.len() * BLOCK];
                cap_scores::<S>(scores, heads.scale, cap);
                1.0
            }
        };
        let fold = Fold {
            scores: space.scores.as_ptr(),
            weights: space.weights.as_mut_ptr(),
            rescale: space.rescale.as_mut_ptr(),
            records: space.span.as_mut_ptr().wrapping_add(first),
            record_len: sizes.record,
            scale: scale * std::f32::consts::LOG2_E,
            scales: space.scales(sizes, head * sizes.rows + rows.start),
        };
        // SAFETY: `fit` sized the buffers for whole chunks; `dispatch` detected the instruction set.
        unsafe { fold.run::<F, S>(&space.seen[rows]) };
    }

    /// Computes the weighted sums of a block with infinite or NaN values. Zero times such a value is NaN, so the sum of
    /// each query uses a copy of the values in which unseen values are zero.
    #[inline(always)]
    fn weigh_seen<S: Lanes>(
        &mut self,
        sizes: Sizes,
        entry: usize,
        rows: Range<usize>,
        sums: Product,
    ) {
        let space = &mut *self.space;
        let values = space.blocks.values::<F>(sizes, entry);
        space.masked.grow_to(values.len());
        for (row, seen) in space.seen[rows].iter().enumerate() {
            if seen.is_empty() {
                continue;
            }
            for i in 0..sums.depth {
                let mut mask = 0;
                for part in 0..F::PER_WORD {
                    let bits = u32::MAX >> (32 - 32 / F::PER_WORD);
                    if seen.contains(i * F::PER_WORD + part) {
                        mask |= bits << (16 * part);
                    }
                }
                let words = i * sizes.width..(i + 1) * sizes.width;
                for (masked, word) in space.masked[words.clone()].iter_mut().zip(&values[words]) {
                    *masked = word & mask;
                }
            }
            let sums = Product {
                b: space.masked.as_ptr(),
                ..sums.starting_at(row)
            };
            // SAFETY: one row of the caller's operands; the instruction set was detected by `dispatch`.
            unsafe { F::weigh::<S>(&sums, 1, sizes.width / LANES) };
        }
    }
}
