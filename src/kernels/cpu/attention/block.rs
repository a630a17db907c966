//! A packed block of keys and values, taken into the records of the queries.

use std::ops::Range;

use super::super::simd::{LANES, Lanes};
use super::format::Format;
use super::product::Product;
use super::space::Sizes;
use super::state::fold;
use super::tile::Work;
use super::{BLOCK, Seen};

/// Rows in runs that are short enough to leave out what none of a run sees, and whole tiles of a product.
fn runs(sizes: Sizes) -> impl Iterator<Item = Range<usize>> {
    const RUN: usize = 12;
    let starts = (0..sizes.rows).step_by(RUN);
    starts.map(move |first| first..sizes.rows.min(first + RUN))
}

impl<F: Format> Work<'_, F> {
    /// Takes a packed block into the records of a head.
    #[inline(always)]
    pub fn attend_block<S: Lanes>(
        &mut self,
        sizes: Sizes,
        head: usize,
        start: usize,
        loaded: Seen,
    ) {
        let words = sizes.width / F::PER_WORD;
        let first = head * sizes.rows * sizes.record;
        let space = &mut *self.space;
        let scores = Product {
            a: space
                .queries
                .as_ptr()
                .wrapping_add(head * sizes.rows * words),
            lda: words,
            b: space.keys.as_ptr(),
            ldb: BLOCK,
            c: space.scores.as_mut_ptr(),
            ldc: BLOCK,
            depth: sizes.depth,
            decay: std::ptr::null(),
        };
        for rows in runs(sizes) {
            let seen_end = self.seen_end(sizes, start, &rows);
            // SAFETY: `fit` made room for all operands, `load_block` filled as many vectors; `dispatch` detected the
            // instruction set.
            unsafe {
                scores
                    .starting_at(rows.start)
                    .run::<F, S, false>(rows.len(), seen_end.div_ceil(LANES))
            };
        }
        let common_end = self.fold_block::<S>(sizes, head, start, loaded);
        let space = &mut *self.space;
        let sums = Product {
            a: space.weights.as_ptr(),
            lda: BLOCK / F::PER_WORD,
            b: space.values.as_ptr(),
            ldb: sizes.width,
            c: space.span.as_mut_ptr().wrapping_add(first),
            ldc: sizes.record,
            depth: (loaded.end as usize).div_ceil(F::PER_WORD),
            decay: space.decay.as_ptr(),
        };
        let partly_seen = common_end / F::PER_WORD * sizes.width..sums.depth * sizes.width;
        let all_seen = common_end == loaded.end as usize;
        let is_finite = |all, word: &u32| all & F::is_finite(*word);
        if all_seen || space.values[partly_seen].iter().fold(true, is_finite) {
            for rows in runs(sizes) {
                let depth = self.seen_end(sizes, start, &rows).div_ceil(F::PER_WORD);
                if depth > 0 {
                    let sums = Product { depth, ..sums }.starting_at(rows.start);
                    // SAFETY: as above.
                    unsafe { sums.run::<F, S, true>(rows.len(), sizes.width / LANES) };
                }
            }
        } else {
            self.weigh_seen::<S>(sizes, start, sums);
        }
    }

    /// How many keys of a block some of the rows see, those before them included.
    #[inline(always)]
    fn seen_end(&self, sizes: Sizes, start: usize, rows: &Range<usize>) -> usize {
        let tokens = rows.start / sizes.group..rows.end.div_ceil(sizes.group);
        let ends = self.tokens()[tokens].iter().map(|token| {
            let seen = Seen::new(token.sees(self.step.plan.window), start);
            if seen.is_empty() {
                0
            } else {
                seen.end as usize
            }
        });
        ends.max().unwrap_or(0)
    }

    /// Turns the scores of a block into weights; returns the first key, or one before it, that not all queries see.
    #[inline(always)]
    pub fn fold_block<S: Lanes>(
        &mut self,
        sizes: Sizes,
        head: usize,
        start: usize,
        loaded: Seen,
    ) -> usize {
        const LOG2_E: f32 = std::f32::consts::LOG2_E;
        let first = head * sizes.rows * sizes.record;
        let scale = self.step.heads.scale * LOG2_E;
        let window = self.step.plan.window;
        let space = &mut *self.space;
        let tokens = self
            .step
            .plan
            .tokens_of(&self.step.plan.tiles[self.item.tile as usize]);
        let mut common_end = loaded.end as usize;
        for (i, token) in tokens.iter().enumerate() {
            let seen = Seen::new(token.sees(window), start);
            let covered = if seen.start <= loaded.start {
                seen.end
            } else {
                0
            };
            common_end = common_end.min(covered as usize);
            for row in i * sizes.group..(i + 1) * sizes.group {
                let record = &mut space.span[first + row * sizes.record..][..sizes.record];
                // SAFETY: as above.
                space.decay[row] = unsafe {
                    fold::<F, S>(
                        space.scores.as_mut_ptr().wrapping_add(row * BLOCK),
                        space
                            .weights
                            .as_mut_ptr()
                            .wrapping_add(row * BLOCK / F::PER_WORD),
                        seen,
                        scale,
                        record,
                    )
                };
            }
        }
        common_end
    }

    /// The weighted sums of a block where something is infinite: zero times that would not be zero, so each query has
    /// the values that it does not see taken away.
    #[inline(always)]
    fn weigh_seen<S: Lanes>(&mut self, sizes: Sizes, start: usize, sums: Product) {
        let window = self.step.plan.window;
        let tokens = self
            .step
            .plan
            .tokens_of(&self.step.plan.tiles[self.item.tile as usize]);
        let space = &mut *self.space;
        space.masked.make_room(space.values.len());
        for row in 0..sizes.rows {
            let seen = Seen::new(tokens[row / sizes.group].sees(window), start);
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
                for (masked, word) in space.masked[words.clone()]
                    .iter_mut()
                    .zip(&space.values[words])
                {
                    *masked = word & mask;
                }
            }
            let sums = Product {
                b: space.masked.as_ptr(),
                ..sums.starting_at(row)
            };
            // SAFETY: one row of what the caller passed; the instruction set was detected by `dispatch`.
            unsafe { sums.run::<F, S, true>(1, sizes.width / LANES) };
        }
    }
}
