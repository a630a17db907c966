//! Attention for few queries: keys and values go from the KV pool to registers without being packed.
//!
//! A plane is one head's keys (or values) in all slots. Terms are added in the order of [`super::product`], so the
//! results are bit-identical to those of packed blocks.

use super::super::simd::{LANES, Lanes};
use super::float_kv::FloatKv;
use super::scales::Scales;
use super::seen::BLOCK;

/// Maximum number of queries: their sums, sixteen words of keys and the intermediate values then fill the registers.
pub const MAX_DIRECT_ROWS: usize = 4;

/// A block of keys and values of one head, and the queries that see all of its loaded slots.
pub struct Direct<'a, F> {
    /// Starts of the slots in the first head's plane.
    pub slots: &'a [*const F; BLOCK],
    pub n_keys: usize,
    /// Elements of a key and of a value; both are whole vectors of words.
    pub key_dim: usize,
    pub value_dim: usize,
    pub rows: usize,
    /// Elements from the first head's plane to the plane that is read.
    pub offset: usize,
    /// `[rows, key_dim / PER_WORD]` words.
    pub queries: *const u32,
    /// `[rows, BLOCK]`.
    pub scores: *mut f32,
    /// `[rows, BLOCK / PER_WORD]` words.
    pub weights: *const u32,
    /// `[rows]`.
    pub rescale: *const f32,
    /// Weighted sums, `[rows, record_len]`.
    pub sums: *mut f32,
    pub record_len: usize,
    pub scales: Scales,
}

/// Slots of a plane to prefetch, a few at a time.
pub struct Fetch<'a, F> {
    pub slots: &'a [*const F],
    /// Elements from the first head's plane to the slots' plane.
    pub offset: usize,
    /// Elements of a slot in the plane that are read.
    pub dim: usize,
}

impl<F> Fetch<'_, F> {
    #[inline(always)]
    pub fn prefetch<S: Lanes>(&mut self, n_slots: usize) {
        const LINE_BYTES: usize = 64;
        let (now, later) = self.slots.split_at(n_slots.min(self.slots.len()));
        for slot in now {
            let start = slot.wrapping_add(self.offset).cast::<u8>();
            for at in (0..self.dim * size_of::<F>()).step_by(LINE_BYTES) {
                // SAFETY: only a hint; the tile's caller detected the instruction set.
                unsafe { S::prefetch(start.wrapping_add(at)) };
            }
        }
        self.slots = later;
    }
}

impl<F: FloatKv> Direct<'_, F> {
    /// # Safety
    /// The pointers are valid for the shapes; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn score<S: Lanes>(&self, fetch: &mut Fetch<'_, F>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.rows {
                1 => self.score_rows::<S, 1>(fetch),
                2 => self.score_rows::<S, 2>(fetch),
                3 => self.score_rows::<S, 3>(fetch),
                _ => self.score_rows::<S, MAX_DIRECT_ROWS>(fetch),
            }
        }
    }

    #[inline(always)]
    unsafe fn score_rows<S: Lanes, const M: usize>(&self, fetch: &mut Fetch<'_, F>) {
        let words = self.key_dim / F::PER_WORD;
        let n_pieces = self.n_keys.div_ceil(LANES) * words / LANES;
        let share = fetch.slots.len().div_ceil(n_pieces.max(1));
        for group in (0..self.n_keys).step_by(LANES) {
            // SAFETY: the slots hold `key_dim` elements in the plane.
            unsafe {
                let mut sums = [S::splat(0.0); M];
                for first in (0..words).step_by(LANES) {
                    let mut keys = [S::splat_word(0); LANES];
                    for i in 0..LANES {
                        let key = self.slots[group + i].wrapping_add(self.offset);
                        keys[i] = F::words::<S>(key.wrapping_add(first * F::PER_WORD));
                    }
                    fetch.prefetch::<S>(share);
                    let columns = S::transpose(keys);
                    for i in 0..LANES {
                        let column = F::from_words::<S>(columns[i]);
                        for m in 0..M {
                            let query = self.queries.wrapping_add(m * words + first + i);
                            sums[m] = F::multiply::<S>(sums[m], F::broadcast::<S>(query), column);
                        }
                    }
                }
                for m in 0..M {
                    S::store(self.scores.wrapping_add(m * BLOCK + group), sums[m]);
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::score`].
    #[inline(always)]
    pub unsafe fn weigh<S: Lanes>(&self, fetch: &mut Fetch<'_, F>) {
        // SAFETY: guaranteed by the caller. Sums of a pass fill about half of the registers.
        unsafe {
            match (self.rows, S::REGISTERS_PER_VECTOR) {
                (1, 1) => self.weigh_rows::<S, 1, 8>(0, fetch),
                (2, 1) => self.weigh_rows::<S, 2, 8>(0, fetch),
                (3, 1) => self.weigh_rows::<S, 3, 4>(0, fetch),
                (_, 1) => self.weigh_rows::<S, MAX_DIRECT_ROWS, 4>(0, fetch),
                _ => {
                    for row in 0..self.rows {
                        self.weigh_rows::<S, 1, 2>(row, fetch);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh_rows<S: Lanes, const M: usize, const N: usize>(
        &self,
        row: usize,
        fetch: &mut Fetch<'_, F>,
    ) {
        let vectors = self.value_dim / LANES;
        let mut vector = 0;
        while vector < vectors {
            // SAFETY: vectors below `vectors`.
            vector += unsafe {
                match vectors - vector {
                    rest if rest >= N => self.weigh_vectors::<S, M, N>(row, vector, fetch),
                    _ => self.weigh_vectors::<S, M, 2>(row, vector, fetch),
                }
            };
        }
    }

    #[inline(always)]
    unsafe fn weigh_vectors<S: Lanes, const M: usize, const N: usize>(
        &self,
        row: usize,
        vector: usize,
        fetch: &mut Fetch<'_, F>,
    ) -> usize {
        let n_words = self.n_keys.div_ceil(F::PER_WORD);
        let share = fetch.slots.len().div_ceil(n_words.max(1));
        let at = self.offset + vector * LANES;
        // SAFETY: the slots hold `value_dim` elements in the plane, the sums `record_len` values a row.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; M];
            for i in 0..n_words {
                fetch.prefetch::<S>(share);
                let first = self.slots[i * F::PER_WORD].wrapping_add(at);
                let second = self.slots[i * F::PER_WORD + F::PER_WORD - 1].wrapping_add(at);
                let mut weights = [F::from_words::<S>(S::splat_word(0)); M];
                for m in 0..M {
                    let word = self
                        .weights
                        .wrapping_add((row + m) * BLOCK / F::PER_WORD + i);
                    weights[m] = F::broadcast::<S>(word);
                }
                for n in (0..N).step_by(2) {
                    let (first, second) = (
                        first.wrapping_add(n * LANES),
                        second.wrapping_add(n * LANES),
                    );
                    let pair = F::across::<S>(first, second);
                    for j in 0..2 {
                        let values = F::from_words::<S>(pair[j]);
                        for m in 0..M {
                            sums[m][n + j] = F::multiply::<S>(sums[m][n + j], weights[m], values);
                        }
                    }
                }
            }
            for m in 0..M {
                let rescale = S::splat_at(self.rescale.wrapping_add(row + m));
                for n in 0..N {
                    let c = self
                        .sums
                        .wrapping_add((row + m) * self.record_len + (vector + n) * LANES);
                    S::store(c, S::mul_add(S::load(c), rescale, sums[m][n]));
                }
            }
        }
        N
    }
}
