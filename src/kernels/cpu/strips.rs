//! Products of many rows with weights in f32, f16 or bf16 on registers of 256 bits.
//!
//! The tiles of [`super::tile`] widen weights anew for each group of rows, and four rows by one panel leave a quarter of
//! sixteen registers idle. Here the weights of up to [`MAX_PANELS`] panels are widened to f32 once for all groups of an item,
//! so many inputs at a time that they stay in the first cache, and a group meets them in *strips*: those of three panels in two
//! of 24 outputs, fewer in one of 16 for each. The chains of sums are the same as in a tile: they rest in memory between one
//! part of the inputs and the next.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::format::PANEL;
use super::simd::Lanes;
use super::tile::{MAX_PANELS, Plain, SUMS, Sums};

/// Outputs of a strip of [`MAX_PANELS`] panels.
pub const WIDE_STRIP: usize = SUMS / 2;
/// Outputs of a strip of fewer panels: four rows of them leave registers idle, but none waits for the sum before.
pub const NARROW_STRIP: usize = PANEL;
/// Most rows of a group, whose sums fill twelve registers.
pub const STRIP_ROWS: usize = 4;
/// Most groups of rows that are multiplied with the same strips.
pub const MOST_GROUPS: usize = 64;
/// Fewer groups are not worth storing the weights for.
pub const LEAST_GROUPS: usize = 4;

/// Inputs that are widened at once: with 48 outputs they take 18 KiB, which leaves room in 32 for the rows.
pub const PART: usize = 96;

/// Weights of up to [`MAX_PANELS`] panels in f32, side by side for each input, [`SUMS`] values from one to the next.
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
    pub unsafe fn fill<S: Lanes, F: Plain, const N: usize>(
        &mut self,
        panels: [*const u32; N],
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

    /// Multiplies a group of `rows` rows with so many inputs of `n_panels` panels into `sums`, or adds to what is there.
    ///
    /// # Safety
    /// `words` is valid for `rows` rows of `inputs` words, as many as were taken of so many panels; `sums` holds the rows'
    /// sums unless it `begins`; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn multiply<S: Lanes>(
        &self,
        rows: (*const u32, usize),
        n_panels: usize,
        inputs: usize,
        begins: bool,
        sums: &mut Sums,
    ) {
        let sums = sums.as_mut_ptr().cast::<f32>();
        // SAFETY: the caller's promise.
        unsafe {
            if n_panels == MAX_PANELS {
                for first in [0, WIDE_STRIP] {
                    self.strip::<S, WIDE_STRIP>(rows, first, inputs, begins, sums);
                }
                return;
            }
            for panel in 0..n_panels {
                self.strip::<S, NARROW_STRIP>(rows, panel * PANEL, inputs, begins, sums);
            }
        }
    }

    /// Multiplies rows with the strip that begins at an output.
    #[inline(always)]
    unsafe fn strip<S: Lanes, const STRIP: usize>(
        &self,
        (words, rows): (*const u32, usize),
        first: usize,
        inputs: usize,
        begins: bool,
        sums: *mut f32,
    ) {
        let strip = self.0.as_ptr().cast::<f32>().wrapping_add(first);
        let (words, sums) = (words.cast(), sums.wrapping_add(first));
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => S::multiply_strip::<1, STRIP>(words, strip, inputs, begins, sums),
                2 => S::multiply_strip::<2, STRIP>(words, strip, inputs, begins, sums),
                3 => S::multiply_strip::<3, STRIP>(words, strip, inputs, begins, sums),
                STRIP_ROWS => {
                    S::multiply_strip::<STRIP_ROWS, STRIP>(words, strip, inputs, begins, sums);
                }
                _ => unreachable!("a group has 1 to {STRIP_ROWS} rows, not {rows}"),
            }
        }
    }
}
