//! Inner loops of matrix products: some rows of activations times some panels of weights.
//!
//! Every output is one chain of sums in ascending input order, in its own lane: its bits don't depend on other rows and
//! panels.

use half::f16;

use super::ahead::{Ahead, is_int8_prefetched};
use super::panel::{INT8_STEPS, MAX_ROWS, PANEL, SUMS, Sums};
use super::simd::Lanes;

/// Maximum rows of a tile: registers of `S` must hold operands in addition to the sums.
pub const fn max_rows<S: Lanes>() -> usize {
    match S::REGISTERS_PER_VECTOR {
        1 => MAX_ROWS,
        2 => 4,
        _ => 2,
    }
}

/// A format without headers.
pub trait Plain: 'static {
    const STEP_WORDS: usize;
    const ROW_WORDS: usize = 1;
    /// Whether a step is a word of two bf16 for each output, each multiplied with its own word of a row.
    const WIDENS_PAIRS: bool = false;
    type Step<S: Lanes>: Copy;
    type Factor<S: Lanes>: Copy;

    /// # Safety
    /// `p` is valid for a step; the instruction set of `S` was detected.
    unsafe fn load<S: Lanes>(p: *const u32) -> Self::Step<S>;

    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn factor<S: Lanes>(step: Self::Step<S>, word: usize) -> Self::Factor<S>;

    /// The weights that multiply a word of a row, in f32; not supported for rows of bf16 pairs.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn widened<S: Lanes>(step: Self::Step<S>, word: usize) -> S::V;

    /// Adds the products of a row's word with its factor.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn product<S: Lanes>(acc: S::V, row: u32, factor: Self::Factor<S>) -> S::V;
}

pub struct F32;
pub struct F16;
pub struct Bf16;
/// bf16 weights, f32 activations.
pub struct WideBf16;

impl Plain for F32 {
    const STEP_WORDS: usize = PANEL;
    type Step<S: Lanes> = S::V;
    type Factor<S: Lanes> = S::V;

    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u32) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::load(p.cast()) }
    }

    #[inline(always)]
    unsafe fn factor<S: Lanes>(step: S::V, _word: usize) -> S::V {
        step
    }

    #[inline(always)]
    unsafe fn widened<S: Lanes>(step: S::V, _word: usize) -> S::V {
        step
    }

    #[inline(always)]
    unsafe fn product<S: Lanes>(acc: S::V, row: u32, factor: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::mul_add(S::splat(f32::from_bits(row)), factor, acc) }
    }
}

impl Plain for F16 {
    const STEP_WORDS: usize = PANEL / 2;
    type Step<S: Lanes> = S::V;
    type Factor<S: Lanes> = S::V;

    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u32) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::load_f16(p.cast::<f16>()) }
    }

    #[inline(always)]
    unsafe fn factor<S: Lanes>(step: S::V, _word: usize) -> S::V {
        step
    }

    #[inline(always)]
    unsafe fn widened<S: Lanes>(step: S::V, _word: usize) -> S::V {
        step
    }

    #[inline(always)]
    unsafe fn product<S: Lanes>(acc: S::V, row: u32, factor: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::mul_add(S::splat(f32::from_bits(row)), factor, acc) }
    }
}

impl Plain for WideBf16 {
    const STEP_WORDS: usize = PANEL;
    const ROW_WORDS: usize = 2;
    const WIDENS_PAIRS: bool = true;
    type Step<S: Lanes> = S::W;
    type Factor<S: Lanes> = S::V;

    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u32) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe { S::load_words(p) }
    }

    #[inline(always)]
    unsafe fn factor<S: Lanes>(step: S::W, word: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            S::from_words(match word {
                0 => S::shift_left(step, 16),
                _ => S::and(step, S::splat_word(0xffff_0000)),
            })
        }
    }

    #[inline(always)]
    unsafe fn widened<S: Lanes>(step: S::W, word: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::factor::<S>(step, word) }
    }

    #[inline(always)]
    unsafe fn product<S: Lanes>(acc: S::V, row: u32, factor: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::mul_add(S::splat(f32::from_bits(row)), factor, acc) }
    }
}

impl Plain for Bf16 {
    const STEP_WORDS: usize = PANEL;
    type Step<S: Lanes> = S::W;
    type Factor<S: Lanes> = S::W;

    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u32) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe { S::load_words(p) }
    }

    #[inline(always)]
    unsafe fn factor<S: Lanes>(step: S::W, _word: usize) -> S::W {
        step
    }

    #[inline(always)]
    unsafe fn widened<S: Lanes>(_step: S::W, _word: usize) -> S::V {
        unreachable!("rows of bf16 pairs have no strips");
    }

    #[inline(always)]
    unsafe fn product<S: Lanes>(acc: S::V, row: u32, factor: S::W) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::dot_pairs(acc, S::splat_word(row), factor) }
    }
}

/// Prefetch distance in each panel of a tile of several panels, in steps. These panels come from L2, which takes some
/// hundreds of cycles.
const NEAR_STEPS: usize = 10;

pub trait RowWords<const M: usize>: Copy {
    /// # Safety
    /// The row has this word.
    unsafe fn word(&self, row: usize, word: usize) -> u32;
}

/// Interleaved rows: the words of all rows, word by word.
#[derive(Clone, Copy)]
pub struct InterleavedRows(pub *const u32);

impl<const M: usize> RowWords<M> for InterleavedRows {
    #[inline(always)]
    unsafe fn word(&self, row: usize, word: usize) -> u32 {
        // SAFETY: guaranteed by the caller.
        unsafe { super::simd::read(self.0.wrapping_add(word * M).wrapping_add(row)) }
    }
}

/// Separate rows, each contiguous.
#[derive(Clone, Copy)]
pub struct SeparateRows<const M: usize>([*const u32; M]);

impl<const M: usize> SeparateRows<M> {
    /// Rows of `row_words` words, by index.
    ///
    /// # Safety
    /// `picked` has `M` indices.
    #[inline(always)]
    pub unsafe fn picked(all: *const u32, row_words: usize, picked: *const u32) -> Self {
        let mut rows = [all; M];
        for m in 0..M {
            // SAFETY: guaranteed by the caller.
            let row = unsafe { super::simd::read::<u32, u32>(picked.wrapping_add(m)) };
            rows[m] = all.wrapping_add(row as usize * row_words);
        }
        Self(rows)
    }
}

impl<const M: usize> RowWords<M> for SeparateRows<M> {
    #[inline(always)]
    unsafe fn word(&self, row: usize, word: usize) -> u32 {
        // SAFETY: guaranteed by the caller.
        unsafe { super::simd::read(self.0[row].wrapping_add(word)) }
    }
}

/// Multiplies `M` rows with `N` panels into the first `N * PANEL` values of `M` rows of `sums`.
///
/// # Safety
/// Each row has `steps * F::ROW_WORDS` words, each panel `steps` steps; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn plain<S: Lanes, F: Plain, R: RowWords<M>, const M: usize, const N: usize>(
    rows: R,
    panels: [*const u32; N],
    steps: usize,
    ahead: Ahead,
    sums: &mut Sums,
) {
    let is_one_product_per_line =
        M * F::ROW_WORDS * S::REGISTERS_PER_VECTOR * PANEL == F::STEP_WORDS;
    let mut ahead = ahead.over(steps).shorten(is_one_product_per_line);
    let every = ahead.every;
    let sums = sums.as_mut_ptr().cast::<f32>();
    // SAFETY: all offsets stay within the ranges that the caller guaranteed.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; M];
        // `wrapping_add`, because debug builds check plain offsets, which takes twice as long as the products.
        for first in (0..steps).step_by(every) {
            ahead.fetch::<S>();
            for step in first..steps.min(first + every) {
                if N == 1 {
                    ahead.follow::<S>(panels[0], step, F::STEP_WORDS);
                } else {
                    for n in 0..N {
                        let later = panels[n].wrapping_add((step + NEAR_STEPS) * F::STEP_WORDS);
                        S::prefetch_near(later);
                    }
                }
                // No closure: that would be compiled without the instruction set.
                let offset = step * F::STEP_WORDS;
                let mut weights = [F::load::<S>(panels[0].wrapping_add(offset)); N];
                for n in 1..N {
                    weights[n] = F::load::<S>(panels[n].wrapping_add(offset));
                }
                for word in 0..F::ROW_WORDS {
                    let mut factors = [F::factor::<S>(weights[0], word); N];
                    for n in 1..N {
                        factors[n] = F::factor::<S>(weights[n], word);
                    }
                    for m in 0..M {
                        let x = rows.word(m, step * F::ROW_WORDS + word);
                        for n in 0..N {
                            acc[m][n] = F::product::<S>(acc[m][n], x, factors[n]);
                        }
                    }
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                S::store(sums.wrapping_add(m * SUMS + n * PANEL), acc[m][n]);
            }
        }
    }
}

/// As [`plain`], for quantised rows and panels. The integer sums of a group of inputs are exact; they are scaled and
/// added in ascending group order.
///
/// # Safety
/// `rows` and the panels are valid for `groups` whole groups; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn int8<S: Lanes, const M: usize, const N: usize>(
    rows: *const u32,
    panels: [*const u32; N],
    groups: usize,
    ahead: Ahead,
    sums: &mut Sums,
) {
    let mut ahead = ahead
        .over(groups * INT8_STEPS)
        .shorten(is_int8_prefetched::<S>(M));
    let every = ahead.every.min(INT8_STEPS);
    let row_words = if S::BYTE_QUADS { 1 } else { 2 } * INT8_STEPS;
    let sums = sums.as_mut_ptr().cast::<f32>();
    let read = |p: *const u32| -> u32 {
        // SAFETY: within the ranges that the caller guaranteed.
        unsafe { super::simd::read(p) }
    };
    // SAFETY: all offsets stay within the ranges that the caller guaranteed.
    unsafe {
        clear::<S, M, N>(sums);
        for group in 0..groups {
            let scales = rows.wrapping_add(group * (row_words + 2) * M);
            let corrections = scales.wrapping_add(M);
            let words = corrections.wrapping_add(M);
            let mut panel = panels;
            for panel in &mut panel {
                *panel = panel.wrapping_add(group * (INT8_STEPS + 1) * PANEL);
            }
            let mut acc = [[S::splat_word(0); N]; M];
            for (m, acc) in acc.iter_mut().enumerate() {
                *acc = [S::splat_word(read(corrections.wrapping_add(m))); N];
            }
            if N == 1 {
                // A group has an additional line: its scales.
                ahead.follow::<S>(panel[0], INT8_STEPS, PANEL);
            }
            for first in (0..INT8_STEPS).step_by(every) {
                ahead.fetch::<S>();
                for step in first..INT8_STEPS.min(first + every) {
                    if N == 1 {
                        ahead.follow::<S>(panel[0], step, PANEL);
                    }
                    let mut weights = [S::splat_word(0); N];
                    for n in 0..N {
                        weights[n] = S::load_words(panel[n].wrapping_add((step + 1) * PANEL));
                    }
                    add_products::<S, M, N>(&mut acc, words, step, weights);
                }
            }
            add_scaled::<S, M, N>(acc, scales, panel, sums);
        }
    }
}

/// Adds the integer products of one step of a group to the sums.
///
/// # Safety
/// `words` is valid for the whole group; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn add_products<S: Lanes, const M: usize, const N: usize>(
    acc: &mut [[S::W; N]; M],
    words: *const u32,
    step: usize,
    weights: [S::W; N],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if S::BYTE_QUADS {
            for m in 0..M {
                let word = super::simd::read(words.wrapping_add(step * M + m));
                let word = S::splat_word(word);
                for n in 0..N {
                    acc[m][n] = S::dot_quads(acc[m][n], word, weights[n]);
                }
            }
            return;
        }
        for odd in 0..2 {
            let words = words.wrapping_add((odd * INT8_STEPS + step) * M);
            let mut factors = weights;
            for n in 0..N {
                factors[n] = shorts::<S>(weights[n], odd);
            }
            for m in 0..M {
                let word = S::splat_word(super::simd::read(words.wrapping_add(m)));
                for n in 0..N {
                    acc[m][n] = S::dot_shorts(acc[m][n], word, factors[n]);
                }
            }
        }
    }
}

/// # Safety
/// The sums are valid; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn clear<S: Lanes, const M: usize, const N: usize>(sums: *mut f32) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for m in 0..M {
            for n in 0..N {
                S::store(sums.wrapping_add(m * SUMS + n * PANEL), S::splat(0.0));
            }
        }
    }
}

/// Adds the integer sums of a group of inputs, times the scales of the rows and of the panels.
///
/// # Safety
/// `scales` and `panel` point to the start of the group; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn add_scaled<S: Lanes, const M: usize, const N: usize>(
    acc: [[S::W; N]; M],
    scales: *const u32,
    panel: [*const u32; N],
    sums: *mut f32,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for m in 0..M {
            let row_scale = S::splat(f32::from_bits(super::simd::read(scales.wrapping_add(m))));
            for n in 0..N {
                let scale = S::mul(S::load(panel[n].cast()), row_scale);
                let sum = sums.wrapping_add(m * SUMS + n * PANEL);
                S::store(
                    sum,
                    S::mul_add(S::words_to_f32(acc[m][n]), scale, S::load(sum)),
                );
            }
        }
    }
}

/// Bytes 0 and 2 of each word, or bytes 1 and 3 if `odd` is 1, zero-extended to 16 bits.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn shorts<S: Lanes>(words: S::W, odd: usize) -> S::W {
    // SAFETY: guaranteed by the caller.
    unsafe {
        S::and(
            S::shift_right(words, 8 * odd as u32),
            S::splat_word(0x00ff_00ff),
        )
    }
}
