//! Attention to int8 keys and values for few queries, which reads them from the KV pool without packing.

use super::super::direct::{Direct, Fetch, MAX_DIRECT_ROWS};
use super::{
    BLOCK, CHUNK, CHUNK_GROUPS, CHUNK_VECTORS, CHUNK_WORDS, GROUP_QUADS, GROUP_VECTORS, HALF,
    HALF_WORDS, quads,
};
use crate::cpu::simd::{LANES, Lanes};
use souffleur_base::kv_layout::SCALE_GROUP;

impl Direct<'_, i8> {
    /// # Safety
    /// The pointers are valid for the shapes; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn score_codes<S: Lanes>(&self, fetch: &mut Fetch<'_, i8>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.rows {
                1 => self.score_code_rows::<S, 1>(fetch),
                2 => self.score_code_rows::<S, 2>(fetch),
                3 => self.score_code_rows::<S, 3>(fetch),
                _ => self.score_code_rows::<S, MAX_DIRECT_ROWS>(fetch),
            }
        }
    }

    #[inline(always)]
    unsafe fn score_code_rows<S: Lanes, const M: usize>(&self, fetch: &mut Fetch<'_, i8>) {
        let n_chunks = self.key_dim.div_ceil(CHUNK);
        let n_groups = self.key_dim.div_ceil(SCALE_GROUP);
        let n_pieces = self.n_keys.div_ceil(LANES) * n_chunks;
        let share = fetch.slots.len().div_ceil(n_pieces.max(1));
        for group in (0..self.n_keys).step_by(LANES) {
            // SAFETY: the slots hold whole chunks of keys in the plane, or slack follows them.
            unsafe {
                let mut scores = [S::splat(0.0); M];
                for chunk in 0..n_chunks {
                    let mut keys = [S::splat_word(0); LANES];
                    for i in 0..LANES {
                        let key = self.slots[group + i].wrapping_add(self.offset + chunk * CHUNK);
                        keys[i] = S::load_words(key.cast());
                    }
                    fetch.prefetch::<S>(share);
                    let columns = S::transpose(keys);
                    let first = chunk * CHUNK_GROUPS;
                    for scale_group in first..n_groups.min(first + CHUNK_GROUPS) {
                        // Two sums for each query hide the latency of the additions.
                        let mut sums = [[S::splat_word(0); 2]; M];
                        let quads = (scale_group - first) * GROUP_QUADS;
                        for i in quads..quads + GROUP_QUADS {
                            let pairs = [S::extend_bytes(columns[i]), S::high_bytes(columns[i])];
                            for m in 0..M {
                                let word = (m * n_chunks + chunk) * CHUNK_WORDS + 2 * i;
                                for odd in 0..2 {
                                    let query = self.queries.wrapping_add(word + odd);
                                    let query = S::splat_word_at(query);
                                    sums[m][odd] = S::dot_shorts(sums[m][odd], query, pairs[odd]);
                                }
                            }
                        }
                        let scale = self.scales.keys.wrapping_add(scale_group * BLOCK + group);
                        let scale = S::load(scale);
                        for m in 0..M {
                            let sum = S::words_to_f32(S::add_words(sums[m][0], sums[m][1]));
                            scores[m] = S::mul_add(sum, scale, scores[m]);
                        }
                    }
                }
                for m in 0..M {
                    let scale = S::splat_at(self.scales.queries.wrapping_add(m));
                    let to = self.scores.wrapping_add(m * BLOCK + group);
                    S::store(to, S::mul(scores[m], scale));
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::score_codes`].
    #[inline(always)]
    pub unsafe fn weigh_codes<S: Lanes>(&self, fetch: &mut Fetch<'_, i8>) {
        // SAFETY: guaranteed by the caller. Sums of a pass fill about half of the registers.
        unsafe {
            match (self.rows, S::REGISTERS_PER_VECTOR) {
                (1, 1) => self.weigh_code_rows::<S, 1, 2>(0, fetch),
                (2, 1) => self.weigh_code_rows::<S, 2, 2>(0, fetch),
                (3, 1) => self.weigh_code_rows::<S, 3, 1>(0, fetch),
                (_, 1) => self.weigh_code_rows::<S, MAX_DIRECT_ROWS, 1>(0, fetch),
                _ => {
                    for row in 0..self.rows {
                        self.weigh_code_rows::<S, 1, 1>(row, fetch);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh_code_rows<S: Lanes, const M: usize, const N: usize>(
        &self,
        row: usize,
        fetch: &mut Fetch<'_, i8>,
    ) {
        let n_chunks = self.value_dim.div_ceil(CHUNK);
        let mut chunk = 0;
        while chunk < n_chunks {
            // SAFETY: chunks below `n_chunks`.
            chunk += unsafe {
                match n_chunks - chunk {
                    rest if rest >= N => self.weigh_chunks::<S, M, N>(row, chunk, fetch),
                    _ => self.weigh_chunks::<S, M, 1>(row, chunk, fetch),
                }
            };
        }
    }

    #[inline(always)]
    unsafe fn weigh_chunks<S: Lanes, const M: usize, const N: usize>(
        &self,
        row: usize,
        chunk: usize,
        fetch: &mut Fetch<'_, i8>,
    ) -> usize {
        let n_halves = self.n_keys.div_ceil(HALF);
        let share = fetch.slots.len().div_ceil((n_halves * LANES).max(1));
        let n_groups = self.scales.value_groups;
        // The last chunk may have only one group: the elements after it are unused.
        let weights_index = |row: usize, chunk: usize, group: usize| {
            row * n_groups + (chunk * CHUNK_GROUPS + group).min(n_groups - 1)
        };
        // SAFETY: the slots hold whole chunks of values in the plane, or slack follows them; the sums hold `record_len`
        // values a row.
        unsafe {
            let mut sums = [[[S::splat_word(0); CHUNK_VECTORS]; N]; M];
            for i in 0..n_halves * LANES {
                fetch.prefetch::<S>(share);
                let (half, i) = (i / LANES, i % LANES);
                for n in 0..N {
                    let at = self.offset + (chunk + n) * CHUNK;
                    let quads = quads::<S>(self.slots, half * HALF + i, at);
                    for odd in 0..2 {
                        let mut weights = [[S::splat_word(0); CHUNK_GROUPS]; M];
                        for m in 0..M {
                            for group in 0..CHUNK_GROUPS {
                                let at = weights_index(row + m, chunk + n, group) * BLOCK / 2;
                                let word = half * HALF_WORDS + odd * LANES + i;
                                let word = self.weights.wrapping_add(at + word);
                                weights[m][group] = S::splat_word_at(word);
                            }
                        }
                        for k in 0..CHUNK_VECTORS {
                            let pairs = match odd {
                                0 => S::extend_bytes(quads[k]),
                                _ => S::high_bytes(quads[k]),
                            };
                            for m in 0..M {
                                let weight = weights[m][k / GROUP_VECTORS];
                                sums[m][n][k] = S::dot_shorts(sums[m][n][k], weight, pairs);
                            }
                        }
                    }
                }
            }
            for m in 0..M {
                let rescale = S::splat_at(self.rescale.wrapping_add(row + m));
                for n in 0..N {
                    let to = (row + m) * self.record_len + (chunk + n) * CHUNK;
                    for k in 0..CHUNK_VECTORS {
                        let at = weights_index(row + m, chunk + n, k / GROUP_VECTORS);
                        let scale = S::splat_at(self.scales.weights.wrapping_add(at));
                        let to = self.sums.wrapping_add(to + k * LANES);
                        let sum = S::mul(S::words_to_f32(sums[m][n][k]), scale);
                        S::store(to, S::mul_add(S::load(to), rescale, sum));
                    }
                }
            }
        }
        N
    }
}
