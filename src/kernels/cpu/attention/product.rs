//! Small matrix products of packed operands, for attention scores (`QK^T`) and weighted sums of values.

use super::super::simd::{LANES, Lanes};
use super::float_kv::FloatKv;
use super::scales::Scales;

/// Operands of `c = a b`, or `c = rescale c + a b`, for all rows of `a`.
///
/// # Shapes
/// `a: [rows, lda]`, of which `depth` words of a row are read; `b: [depth, ldb]`; `c: [rows, ldc]`; `rescale: [rows]`.
#[derive(Clone, Copy)]
pub struct Product {
    pub a: *const u32,
    pub lda: usize,
    pub b: *const u32,
    pub ldb: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub depth: usize,
    /// Factors on the values in `c` (online softmax); null if `c` is replaced.
    pub rescale: *const f32,
    pub scales: Scales,
}

impl Product {
    #[inline(always)]
    pub fn starting_at(self, row: usize) -> Self {
        Self {
            a: self.a.wrapping_add(row * self.lda),
            c: self.c.wrapping_add(row * self.ldc),
            rescale: self.rescale.wrapping_add(row),
            scales: self.scales.starting_at(row),
            ..self
        }
    }

    /// Computes `rows` rows and `16 * vectors` columns. Each element of `a b` is summed in order of
    /// ascending depth, whatever the tiling.
    ///
    /// # Safety
    /// The pointers are valid for the shapes; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn replace<F: FloatKv, S: Lanes>(&self, rows: usize, vectors: usize) {
        // SAFETY: the caller guarantees the same.
        unsafe { self.run::<F, S, false>(rows, vectors) };
    }

    /// As [`Self::replace`], added to `c` times `rescale`.
    ///
    /// # Safety
    /// As for [`Self::replace`], and `rescale` is valid for the rows.
    #[inline(always)]
    pub unsafe fn add<F: FloatKv, S: Lanes>(&self, rows: usize, vectors: usize) {
        // SAFETY: the caller guarantees the same.
        unsafe { self.run::<F, S, true>(rows, vectors) };
    }

    #[inline(always)]
    unsafe fn run<F: FloatKv, S: Lanes, const ADD: bool>(&self, rows: usize, vectors: usize) {
        let mut row = 0;
        while row < rows {
            // SAFETY: rows below `rows`.
            row += unsafe {
                match rows - row {
                    6.. if S::REGISTERS_PER_VECTOR == 1 => {
                        self.columns::<F, S, ADD, 6>(row, vectors)
                    }
                    4.. if S::REGISTERS_PER_VECTOR == 1 => {
                        self.columns::<F, S, ADD, 4>(row, vectors)
                    }
                    2.. if S::REGISTERS_PER_VECTOR <= 2 => {
                        self.columns::<F, S, ADD, 2>(row, vectors)
                    }
                    _ => self.columns::<F, S, ADD, 1>(row, vectors),
                }
            };
        }
    }

    #[inline(always)]
    unsafe fn columns<F: FloatKv, S: Lanes, const ADD: bool, const M: usize>(
        &self,
        row: usize,
        vectors: usize,
    ) -> usize {
        let mut vector = 0;
        while vector < vectors {
            // SAFETY: vectors below `vectors`.
            vector += unsafe {
                match vectors - vector {
                    4.. if S::REGISTERS_PER_VECTOR == 1 => {
                        self.tile::<F, S, ADD, M, 4>(row, vector)
                    }
                    2.. => self.tile::<F, S, ADD, M, 2>(row, vector),
                    _ => self.tile::<F, S, ADD, M, 1>(row, vector),
                }
            };
        }
        M
    }

    #[inline(always)]
    unsafe fn tile<F: FloatKv, S: Lanes, const ADD: bool, const M: usize, const N: usize>(
        &self,
        row: usize,
        vector: usize,
    ) -> usize {
        // SAFETY: guaranteed by the caller. Wrapping arithmetic avoids overflow checks in debug builds.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; M];
            let mut a = self.a.wrapping_add(row.wrapping_mul(self.lda));
            let mut b = self.b.wrapping_add(vector * LANES);
            for _ in 0..self.depth {
                let mut columns = [F::operand::<S>(b); N];
                for n in 1..N {
                    columns[n] = F::operand::<S>(b.wrapping_add(n * LANES));
                }
                for m in 0..M {
                    let word = F::broadcast::<S>(a.wrapping_add(m.wrapping_mul(self.lda)));
                    for n in 0..N {
                        sums[m][n] = F::multiply::<S>(sums[m][n], word, columns[n]);
                    }
                }
                a = a.wrapping_add(1);
                b = b.wrapping_add(self.ldb);
            }
            let c = self
                .c
                .wrapping_add(row.wrapping_mul(self.ldc).wrapping_add(vector * LANES));
            for m in 0..M {
                let c = c.wrapping_add(m.wrapping_mul(self.ldc));
                for n in 0..N {
                    let c = c.wrapping_add(n * LANES);
                    let mut sum = sums[m][n];
                    if ADD {
                        let rescale = S::splat_at(self.rescale.wrapping_add(row.wrapping_add(m)));
                        sum = S::mul_add(S::load(c), rescale, sum);
                    }
                    S::store(c, sum);
                }
            }
        }
        N
    }
}
