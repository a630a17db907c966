//! Products of many rows with weights in f32, f16 or bf16 on registers of 256 bits.
//!
//! The tiles of [`super::tile`] widen weights anew for each group of rows, and four rows by one panel leave a quarter of
//! sixteen registers idle. Here the weights of [`MAX_PANELS`] panels are widened to f32 once for all groups of an item, so
//! many inputs at a time that they stay in the first cache, and a group meets them in two *strips* of 24 outputs. The chains
//! of sums are the same as in a tile: they rest in memory between one part of the inputs and the next.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::format::PANEL;
use super::simd::Lanes;
use super::tile::{MAX_PANELS, Plain, SUMS, Sums};

/// Outputs of a strip.
pub const STRIP: usize = SUMS / 2;
/// Most rows of a group, whose sums fill twelve registers.
pub const STRIP_ROWS: usize = 4;
/// Most groups of rows that are multiplied with the same strips.
pub const MOST_GROUPS: usize = 64;
/// Fewer groups are not worth storing the weights for.
pub const LEAST_GROUPS: usize = 4;

/// Inputs that are widened at once: with 48 outputs they take 18 KiB, which leaves room in 32 for the rows.
pub const PART: usize = 96;

/// Weights of [`MAX_PANELS`] panels in f32, side by side for each input.
#[repr(align(64))]
pub struct Widened(MaybeUninit<[f32; SUMS * PART]>);

impl Widened {
    /// Nothing yet.
    pub fn uninit() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Takes up to [`PART`] inputs of panels.
    ///
    /// # Safety
    /// `inputs` are whole steps, for which the panels are valid; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn fill<S: Lanes, F: Plain>(
        &mut self,
        panels: [*const u32; MAX_PANELS],
        inputs: Range<usize>,
    ) {
        debug_assert!(inputs.len() <= PART);
        let mut to = self.0.as_mut_ptr().cast::<f32>();
        for step in inputs.start / F::ROW_WORDS..inputs.end / F::ROW_WORDS {
            // SAFETY: the caller's promise; `inputs.len()` rows of `SUMS` values fit.
            unsafe {
                for (n, panel) in panels.into_iter().enumerate() {
                    let step = F::load::<S>(panel.wrapping_add(step * F::STEP_WORDS));
                    for word in 0..F::ROW_WORDS {
                        let to = to.wrapping_add(word * SUMS + n * PANEL);
                        S::store(to, F::widened::<S>(step, word));
                    }
                }
            }
            to = to.wrapping_add(F::ROW_WORDS * SUMS);
        }
    }

    /// Multiplies a group of `rows` rows with so many inputs into `sums`, or adds to what is there.
    ///
    /// # Safety
    /// `words` is valid for `rows` rows of `inputs` words, as many as were taken; `sums` holds the rows' sums unless it
    /// `begins`; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn multiply<S: Lanes>(
        &self,
        (words, rows): (*const u32, usize),
        inputs: usize,
        begins: bool,
        sums: &mut Sums,
    ) {
        let sums = sums.as_mut_ptr().cast::<f32>();
        for first in [0, STRIP] {
            let strip = self.0.as_ptr().cast::<f32>().wrapping_add(first);
            let sums = sums.wrapping_add(first);
            // SAFETY: the caller's promise.
            unsafe {
                match rows {
                    1 => S::multiply_strip::<1>(words.cast(), strip, inputs, begins, sums),
                    2 => S::multiply_strip::<2>(words.cast(), strip, inputs, begins, sums),
                    3 => S::multiply_strip::<3>(words.cast(), strip, inputs, begins, sums),
                    STRIP_ROWS => {
                        S::multiply_strip::<STRIP_ROWS>(words.cast(), strip, inputs, begins, sums);
                    }
                    _ => unreachable!("a group has 1 to {STRIP_ROWS} rows, not {rows}"),
                }
            }
        }
    }
}
