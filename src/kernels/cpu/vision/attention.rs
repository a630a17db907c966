//! Attention of patches of an image to all of its patches.
//!
//! Keys are packed in panels of sixteen, values in panels of sixteen columns, once for all queries of the image. An item
//! is a block of queries of a head: it computes all of their scores, then the softmax, then the means of values. A
//! query's sums run over ascending elements of the head and ascending keys, whichever block and call it is in.

use crate::cpu::rows::ELEMENT_COST;
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Scratch, Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::vision::{BLOCK_PATCHES, Columns, ImageHeads};

const _: () = assert!(
    BLOCK_PATCHES == LANES,
    "blocks must be whole panels of keys"
);

/// Queries of an item.
const QUERIES: usize = 8;

/// Floats of padding after a query's scores, so that rows of scores do not begin in the same cache set.
const GAP: usize = LANES;

/// The shape of the packed keys and values of an image of `n` patches: a row for each head, and its width.
pub fn room(n: usize, heads: &ImageHeads) -> (usize, usize) {
    let sizes = Sizes::new(n, heads.head_dim);
    (heads.n_heads, sizes.key_len() + sizes.value_len())
}

/// Attends queries to all patches of an image, whose `n` keys and values are packed; see `VisionOps::attend_image`.
///
/// # Panics
/// If the columns are narrower than the heads, or `packed` was made for other heads or another number of patches.
pub fn attend(
    (pool, isa): (&mut ThreadPool, Isa),
    scratch: &Scratch,
    queries: Columns<'_, Tensor>,
    (packed, n): (&Tensor, usize),
    heads: &ImageHeads,
) -> Tensor {
    let n_queries = queries.rows.rows();
    let sizes = Sizes::new(n, heads.head_dim);
    assert_eq!(
        (packed.rows(), packed.width()),
        room(n, heads),
        "the keys must be those of the image"
    );
    let width = heads.width();
    let mut out = scratch.tensor(n_queries, width);
    let lane_len = QUERIES * (sizes.score_len() + heads.head_dim);
    let lanes = (0..pool.n_threads()).map(|_| scratch.tensor(1, lane_len));
    let mut lanes: Vec<Tensor> = lanes.collect();
    let n_blocks = n_queries.div_ceil(QUERIES);
    let cost = 2 * heads.n_heads * n_queries * n * heads.head_dim;
    let shared = Shared::new(out.values_mut());
    pool.for_each_in_runs_with(&mut lanes, heads.n_heads * n_blocks, cost, &|lane, item| {
        let (head, block) = (item / n_blocks, item % n_blocks);
        let rows = block * QUERIES..n_queries.min((block + 1) * QUERIES);
        let (scores, own) = lane.values_mut().split_at_mut(QUERIES * sizes.score_len());
        own.fill(0.0);
        let column = queries.first + head * heads.head_dim;
        for (own, row) in own.chunks_exact_mut(heads.head_dim).zip(rows.clone()) {
            own.copy_from_slice(&queries.rows.row(row)[column..column + heads.head_dim]);
        }
        let (keys, values) = packed.row(head).split_at(sizes.key_len());
        dispatch(
            isa,
            AttendBlock {
                queries: &mut *own,
                keys,
                values,
                scores,
                scale: heads.scale,
                sizes: &sizes,
            },
        );
        for (own, row) in own.chunks_exact(heads.head_dim).zip(rows) {
            let first = row * width + head * heads.head_dim;
            // SAFETY: each head of each row is written by one item.
            let out = unsafe { shared.part(first, heads.head_dim) };
            out.copy_from_slice(own);
        }
    });
    out
}

struct Sizes {
    /// Patches.
    n: usize,
    head_dim: usize,
    key_panels: usize,
    value_panels: usize,
}

impl Sizes {
    fn new(n: usize, head_dim: usize) -> Self {
        Self {
            n,
            head_dim,
            key_panels: n.div_ceil(LANES),
            value_panels: head_dim.div_ceil(LANES),
        }
    }

    /// Floats of a head's packed keys: `[key panel][element][key]`.
    fn key_len(&self) -> usize {
        self.key_panels * self.head_dim * LANES
    }

    /// Floats of a head's packed values: `[column panel][key][column]`.
    fn value_len(&self) -> usize {
        self.value_panels * self.n * LANES
    }

    /// Floats of a query's scores.
    fn score_len(&self) -> usize {
        self.key_panels * LANES + GAP
    }
}

/// Packs the keys and values of consecutive patches, from index `first` on, of an image of `n` patches. Each head has a
/// row of `packed`; zeros pad its last panel of keys and its last panel of columns.
///
/// # Panics
/// If the columns are narrower than the heads, or the patches are not whole panels of keys, as only the image's last may.
pub fn pack(
    pool: &mut ThreadPool,
    (keys, values): (Columns<'_, Tensor>, Columns<'_, Tensor>),
    heads: &ImageHeads,
    (first, n): (usize, usize),
    packed: &mut Tensor,
) {
    let (count, sizes) = (keys.rows.rows(), Sizes::new(n, heads.head_dim));
    let end = first + count;
    let is_whole = end == n || (end < n && end.is_multiple_of(LANES));
    assert!(
        first.is_multiple_of(LANES) && is_whole,
        "patches {first} to {end} of {n} are not whole panels of {LANES}"
    );
    let (row_len, head_dim) = (packed.width(), heads.head_dim);
    let panel_len = head_dim * LANES;
    let (first_panel, panels) = (first / LANES, count.div_ceil(LANES));
    let cost = count * heads.width() * ELEMENT_COST;
    let shared = Shared::new(packed.values_mut());
    pool.for_each_in_runs(heads.n_heads * panels, cost, &|item| {
        let (head, panel) = (item / panels, item % panels);
        let (start, column) = (head * row_len, head * head_dim);
        let rows = panel * LANES..count.min((panel + 1) * LANES);
        let place = start + (first_panel + panel) * panel_len;
        // SAFETY: each panel of keys is written by one item.
        let out = unsafe { shared.part(place, panel_len) };
        out.fill(0.0);
        for (lane, row) in rows.clone().enumerate() {
            let key = &keys.rows.row(row)[keys.first + column..][..head_dim];
            let to = out[lane..].iter_mut().step_by(LANES);
            to.zip(key).for_each(|(out, key)| *out = *key);
        }
        for row in rows {
            let value = &values.rows.row(row)[values.first + column..][..head_dim];
            for (panel, value) in value.chunks(LANES).enumerate() {
                let at = start + sizes.key_len() + (panel * n + first + row) * LANES;
                // SAFETY: the columns of each value are written by one item.
                let out = unsafe { shared.part(at, LANES) };
                out[..value.len()].copy_from_slice(value);
                out[value.len()..].fill(0.0);
            }
        }
    });
}

/// The queries of a block, overwritten by their results.
struct AttendBlock<'a> {
    /// `[QUERIES][head_dim]`.
    queries: &'a mut [f32],
    keys: &'a [f32],
    values: &'a [f32],
    /// `[QUERIES][score_len]`.
    scores: &'a mut [f32],
    scale: f32,
    sizes: &'a Sizes,
}

impl Kernel for AttendBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(mut self) {
        // With two registers per vector, the sums of eight queries do not fit into sixteen registers.
        match S::REGISTERS_PER_VECTOR {
            1 => self.attend::<S, QUERIES>(0),
            _ => {
                self.attend::<S, { QUERIES / 2 }>(0);
                self.attend::<S, { QUERIES / 2 }>(QUERIES / 2);
            }
        }
    }
}

impl AttendBlock<'_> {
    /// Attends `M` queries from `first` on.
    #[inline(always)]
    fn attend<S: Lanes, const M: usize>(&mut self, first: usize) {
        let (head_dim, score_len) = (self.sizes.head_dim, self.sizes.score_len());
        let queries = &mut self.queries[first * head_dim..][..M * head_dim];
        let scores = &mut self.scores[first * score_len..][..M * score_len];
        score::<S, M>((queries, self.keys), self.scale, self.sizes, scores);
        let mut sums = [0.0; M];
        for (sum, scores) in sums.iter_mut().zip(scores.chunks_exact_mut(score_len)) {
            *sum = softmax::<S>(scores, self.sizes);
        }
        mean::<S, M>((scores, &sums), self.values, self.sizes, queries);
    }
}

/// Writes the scaled scores of `M` queries.
#[inline(always)]
fn score<S: Lanes, const M: usize>(
    (queries, keys): (&[f32], &[f32]),
    scale: f32,
    sizes: &Sizes,
    scores: &mut [f32],
) {
    let (head_dim, score_len) = (sizes.head_dim, sizes.score_len());
    for (panel, keys) in keys.chunks_exact(head_dim * LANES).enumerate() {
        // SAFETY: `queries` holds `M * head_dim` values, `keys` sixteen for each element, and each row of `scores` more
        // than sixteen for each panel; `dispatch` detected the instruction set.
        unsafe {
            let mut sums = [S::splat(0.0); M];
            for element in 0..head_dim {
                let key = S::load(keys.as_ptr().add(element * LANES));
                for m in 0..M {
                    let query = S::splat(*queries.get_unchecked(m * head_dim + element));
                    sums[m] = S::mul_add(query, key, sums[m]);
                }
            }
            for m in 0..M {
                let to = scores.as_mut_ptr().add(m * score_len + panel * LANES);
                S::store(to, S::mul(sums[m], S::splat(scale)));
            }
        }
    }
}

/// Replaces a query's scores by their exponentials, relative to the largest; returns the sum of these.
#[inline(always)]
fn softmax<S: Lanes>(scores: &mut [f32], sizes: &Sizes) -> f32 {
    let panels = sizes.key_panels * LANES;
    let scores = &mut scores[..panels];
    // e to the power of these is too small to change a sum.
    scores[sizes.n..].fill(f32::NEG_INFINITY);
    // SAFETY: whole chunks of sixteen values; `dispatch` detected the instruction set.
    unsafe {
        let mut largest = S::splat(f32::NEG_INFINITY);
        for chunk in scores.chunks_exact(LANES) {
            largest = S::max(S::load(chunk.as_ptr()), largest);
        }
        let largest = S::splat(S::max_lane(largest));
        let mut sum = S::splat(0.0);
        for chunk in scores.chunks_exact_mut(LANES) {
            let e = S::exp(S::sub(S::load(chunk.as_ptr()), largest));
            S::store(chunk.as_mut_ptr(), e);
            sum = S::add(sum, e);
        }
        S::sum(sum)
    }
}

/// Writes the means of the values, weighted by `M` queries' exponentials, whose sums are `sums`.
#[inline(always)]
fn mean<S: Lanes, const M: usize>(
    (weights, sums): (&[f32], &[f32; M]),
    values: &[f32],
    sizes: &Sizes,
    out: &mut [f32],
) {
    let (head_dim, score_len) = (sizes.head_dim, sizes.score_len());
    for (panel, values) in values.chunks_exact(sizes.n * LANES).enumerate() {
        let columns = panel * LANES..head_dim.min((panel + 1) * LANES);
        let mut padded = [[0f32; LANES]; M];
        // SAFETY: `weights` holds more than `n` values for each query, `values` sixteen for each key; `dispatch`
        // detected the instruction set.
        unsafe {
            let mut means = [S::splat(0.0); M];
            for key in 0..sizes.n {
                let value = S::load(values.as_ptr().add(key * LANES));
                for m in 0..M {
                    let weight = S::splat(*weights.get_unchecked(m * score_len + key));
                    means[m] = S::mul_add(weight, value, means[m]);
                }
            }
            for m in 0..M {
                S::store(padded[m].as_mut_ptr(), S::div(means[m], S::splat(sums[m])));
            }
        }
        for (m, padded) in padded.iter().enumerate() {
            let out = &mut out[m * head_dim..][columns.clone()];
            out.copy_from_slice(&padded[..out.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rows: usize, width: usize, seed: u64) -> Tensor {
        let mut x = Scratch::default().tensor(rows, width);
        let mut rng = fastrand::Rng::with_seed(seed);
        x.values_mut()
            .iter_mut()
            .for_each(|value| *value = rng.f32() * 4.0 - 2.0);
        x
    }

    fn on(isa: Isa, threads: usize, qkv: &Tensor, heads: &ImageHeads) -> Tensor {
        in_blocks((isa, threads), qkv, heads, qkv.rows())
    }

    /// Keys are packed, and queries attend, `size` patches at a time.
    fn in_blocks(
        (isa, threads): (Isa, usize),
        qkv: &Tensor,
        heads: &ImageHeads,
        size: usize,
    ) -> Tensor {
        let mut pool = ThreadPool::new(threads).expect("threads start");
        let scratch = Scratch::default();
        let (n, width) = (qkv.rows(), heads.width());
        let blocks: Vec<Tensor> = qkv
            .values()
            .chunks(size * qkv.width())
            .map(|values| {
                let mut block = scratch.tensor(values.len() / qkv.width(), qkv.width());
                block.values_mut().copy_from_slice(values);
                block
            })
            .collect();
        let (rows, row_len) = room(n, heads);
        let mut packed = scratch.tensor(rows, row_len);
        packed.values_mut().fill(f32::NAN);
        for (index, rows) in blocks.iter().enumerate() {
            let part = |index: usize| Columns {
                rows,
                first: index * width,
            };
            let place = (index * size, n);
            pack(&mut pool, (part(1), part(2)), heads, place, &mut packed);
        }
        let mut out = scratch.tensor(n, width);
        let outs = out.values_mut().chunks_mut(size * width);
        for (rows, out) in blocks.iter().zip(outs) {
            let queries = Columns { rows, first: 0 };
            let threads = (&mut pool, isa);
            let attended = attend(threads, &scratch, queries, (&packed, n), heads);
            out.copy_from_slice(attended.values());
        }
        out
    }

    /// The result for one query of one head, in f64.
    fn reference(qkv: &Tensor, heads: &ImageHeads, (row, head): (usize, usize)) -> Vec<f64> {
        let part = |row: usize, index: usize| {
            let first = index * heads.width() + head * heads.head_dim;
            let values = &qkv.row(row)[first..first + heads.head_dim];
            values.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>()
        };
        let query = part(row, 0);
        let weights = (0..qkv.rows()).map(|key| {
            let products = query.iter().zip(part(key, 1)).map(|(a, b)| a * b);
            (products.sum::<f64>() * f64::from(heads.scale)).exp()
        });
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        let mut mean = vec![0.0; heads.head_dim];
        for (key, weight) in weights.iter().enumerate() {
            let values = mean.iter_mut().zip(part(key, 2));
            values.for_each(|(mean, value)| *mean += weight / sum * value);
        }
        mean
    }

    #[test]
    fn every_patch_sees_all_patches_on_every_instruction_set() {
        for (n, n_heads, head_dim) in [(1, 1, 2), (7, 2, 18), (16, 3, 16), (37, 2, 72)] {
            let heads = ImageHeads {
                n_heads,
                head_dim,
                scale: 0.25,
            };
            let qkv = random(n, 3 * heads.width(), 7);
            for isa in Isa::available() {
                let out = on(isa, 1, &qkv, &heads);
                for (row, head) in (0..n).flat_map(|row| (0..n_heads).map(move |head| (row, head)))
                {
                    let got = &out.row(row)[head * head_dim..][..head_dim];
                    let expected = reference(&qkv, &heads, (row, head));
                    for (got, expected) in got.iter().zip(expected) {
                        let error = (f64::from(*got) - expected).abs();
                        assert!(error < 1e-5, "{isa:?}, {n} patches, {row}, {head}: {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn bits_depend_neither_on_threads_nor_on_the_place_in_a_block() {
        let heads = ImageHeads {
            n_heads: 4,
            head_dim: 24,
            scale: 0.3,
        };
        // Enough work to be shared.
        let n = 75;
        let qkv = random(n, 3 * heads.width(), 9);
        for isa in Isa::available() {
            let alone = on(isa, 1, &qkv, &heads);
            let shared = on(isa, 3, &qkv, &heads);
            assert!(alone.values() == shared.values(), "{isa:?}");
            for size in [16, 32, 64] {
                let cut = in_blocks((isa, 2), &qkv, &heads, size);
                assert!(alone.values() == cut.values(), "{isa:?}, {size}");
            }
            // The queries in reverse; keys and values stay.
            let mut reversed = Scratch::default().tensor(n, 3 * heads.width());
            for row in 0..n {
                let width = heads.width();
                reversed.row_mut(row)[width..].copy_from_slice(&qkv.row(row)[width..]);
                reversed.row_mut(row)[..width].copy_from_slice(&qkv.row(n - 1 - row)[..width]);
            }
            let reversed = on(isa, 2, &reversed, &heads);
            for row in 0..n {
                assert!(
                    reversed.row(row) == alone.row(n - 1 - row),
                    "{isa:?}, {row}"
                );
            }
        }
    }
}
