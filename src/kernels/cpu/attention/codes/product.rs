//! Attention products of packed int8 keys and values with many queries.

use super::super::product::Product;
use super::{BLOCK, GROUP_VECTORS, GROUP_WORDS};
use crate::cpu::simd::{LANES, Lanes};

impl Product {
    /// Scores `rows` queries against `16 * vectors` keys: the integer sum of each scale group of a key is multiplied by
    /// the group's scale, and the groups are added in order.
    ///
    /// # Safety
    /// As for [`Product::replace`], and the scales are valid for the rows and keys.
    #[inline(always)]
    pub unsafe fn score_codes<S: Lanes>(&self, rows: usize, vectors: usize) {
        let mut row = 0;
        while row < rows {
            // SAFETY: rows below `rows`.
            row += unsafe {
                match rows - row {
                    6.. if S::REGISTERS_PER_VECTOR == 1 => self.score_columns::<S, 6>(row, vectors),
                    4.. if S::REGISTERS_PER_VECTOR == 1 => self.score_columns::<S, 4>(row, vectors),
                    2.. if S::REGISTERS_PER_VECTOR <= 2 => self.score_columns::<S, 2>(row, vectors),
                    _ => self.score_columns::<S, 1>(row, vectors),
                }
            };
        }
    }

    #[inline(always)]
    unsafe fn score_columns<S: Lanes, const M: usize>(&self, row: usize, vectors: usize) -> usize {
        let mut vector = 0;
        while vector < vectors {
            // SAFETY: vectors below `vectors`.
            vector += unsafe {
                match vectors - vector {
                    4.. if S::REGISTERS_PER_VECTOR == 1 => self.score_tile::<S, M, 4>(row, vector),
                    2.. => self.score_tile::<S, M, 2>(row, vector),
                    _ => self.score_tile::<S, M, 1>(row, vector),
                }
            };
        }
        M
    }

    #[inline(always)]
    unsafe fn score_tile<S: Lanes, const M: usize, const N: usize>(
        &self,
        row: usize,
        vector: usize,
    ) -> usize {
        for first in (0..self.depth).step_by(GROUP_WORDS) {
            let depth = GROUP_WORDS.min(self.depth - first);
            let is_last = first + depth == self.depth;
            let group = first / GROUP_WORDS;
            let a = row.wrapping_mul(self.lda).wrapping_add(first);
            let b = first.wrapping_mul(self.ldb).wrapping_add(vector * LANES);
            // SAFETY: guaranteed by the caller. Wrapping arithmetic avoids overflow checks in debug builds.
            unsafe {
                let sums = self.sums::<S, M, N>(a, b, depth);
                for n in 0..N {
                    let scales = group * BLOCK + (vector + n) * LANES;
                    let scales = S::load(self.scales.keys.wrapping_add(scales));
                    for m in 0..M {
                        let row = row.wrapping_add(m);
                        let to = row.wrapping_mul(self.ldc);
                        let to = self.c.wrapping_add(to.wrapping_add((vector + n) * LANES));
                        let before = if first == 0 {
                            S::splat(0.0)
                        } else {
                            S::load(to)
                        };
                        let mut sum = S::mul_add(S::words_to_f32(sums[m][n]), scales, before);
                        if is_last {
                            sum = S::mul(sum, S::splat_at(self.scales.queries.wrapping_add(row)));
                        }
                        S::store(to, sum);
                    }
                }
            }
        }
        N
    }

    /// Adds weighted values to the rescaled accumulators of `rows` queries (online softmax). The softmax weights
    /// contain the values' scales, so they were quantised separately for each scale group of a value.
    ///
    /// # Safety
    /// As for [`Product::add`], and the scales are valid for the rows.
    #[inline(always)]
    pub unsafe fn weigh_codes<S: Lanes>(&self, rows: usize) {
        for group in 0..self.scales.value_groups {
            let mut row = 0;
            while row < rows {
                // SAFETY: rows below `rows`.
                row += unsafe {
                    match rows - row {
                        12.. if S::REGISTERS_PER_VECTOR == 1 => {
                            self.weigh_group::<S, 12>(row, group)
                        }
                        4.. if S::REGISTERS_PER_VECTOR == 1 => self.weigh_group::<S, 4>(row, group),
                        2.. if S::REGISTERS_PER_VECTOR <= 2 => self.weigh_group::<S, 2>(row, group),
                        _ => self.weigh_group::<S, 1>(row, group),
                    }
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh_group<S: Lanes, const M: usize>(&self, row: usize, group: usize) -> usize {
        let n_groups = self.scales.value_groups;
        let a = row
            .wrapping_mul(self.lda)
            .wrapping_add(group.wrapping_mul(BLOCK / 2));
        let column = group * GROUP_VECTORS * LANES;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let sums = self.sums::<S, M, GROUP_VECTORS>(a, column, self.depth);
            for m in 0..M {
                let row = row.wrapping_add(m);
                let rescale = S::splat_at(self.rescale.wrapping_add(row));
                let scale = row.wrapping_mul(n_groups).wrapping_add(group);
                let scale = S::splat_at(self.scales.weights.wrapping_add(scale));
                for n in 0..GROUP_VECTORS {
                    let to = row.wrapping_mul(self.ldc).wrapping_add(column + n * LANES);
                    let to = self.c.wrapping_add(to);
                    let sum = S::mul(S::words_to_f32(sums[m][n]), scale);
                    S::store(to, S::mul_add(S::load(to), rescale, sum));
                }
            }
        }
        M
    }

    /// Integer sums over `depth` words, starting at word `a` of the first operand and word `b` of the second.
    #[inline(always)]
    unsafe fn sums<S: Lanes, const M: usize, const N: usize>(
        &self,
        a: usize,
        b: usize,
        depth: usize,
    ) -> [[S::W; N]; M] {
        // SAFETY: guaranteed by the caller. Wrapping arithmetic avoids overflow checks in debug builds.
        unsafe {
            let mut sums = [[S::splat_word(0); N]; M];
            let mut a = self.a.wrapping_add(a);
            let mut b = self.b.wrapping_add(b);
            for _ in 0..depth {
                let mut columns = [S::splat_word(0); N];
                for n in 0..N {
                    columns[n] = S::load_words(b.wrapping_add(n * LANES));
                }
                for m in 0..M {
                    let word = S::splat_word_at(a.wrapping_add(m.wrapping_mul(self.lda)));
                    for n in 0..N {
                        sums[m][n] = S::dot_shorts(sums[m][n], word, columns[n]);
                    }
                }
                a = a.wrapping_add(1);
                b = b.wrapping_add(self.ldb);
            }
            sums
        }
    }
}
