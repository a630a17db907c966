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

    /// Multiplies the rows of a group with so many inputs of `n_panels` panels into `sums`, or adds to what is there.
    ///
    /// # Safety
    /// `rows` has `inputs` words of each row, and as many were taken of so many panels; `sums` holds the rows' sums unless it
    /// `begins`; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn multiply<S: Lanes>(
        &self,
        rows: RowsPart,
        n_panels: usize,
        inputs: usize,
        begins: bool,
        sums: &mut Sums,
    ) {
        let product = StripProduct {
            rows: rows.words.cast(),
            ahead: rows.ahead.cast(),
            strip: self.0.as_ptr().cast(),
            inputs,
            begins,
            sums: sums.as_mut_ptr().cast(),
        };
        // SAFETY: the caller's promise.
        unsafe {
            if n_panels == MAX_PANELS {
                product.run::<S, WIDE_STRIP>(rows.n);
                // The first strip has asked for the first half of what is multiplied next.
                let ahead = product.ahead.wrapping_add(inputs * rows.n / 2);
                let second = product.at(WIDE_STRIP);
                StripProduct { ahead, ..second }.run::<S, WIDE_STRIP>(rows.n);
                return;
            }
            for panel in 0..n_panels {
                product.at(panel * PANEL).run::<S, NARROW_STRIP>(rows.n);
            }
        }
    }
}

/// Some inputs of the rows of a group, as [`super::activations::RowGroups`] has them.
#[derive(Clone, Copy)]
pub struct RowsPart {
    /// A word of each row for each input.
    pub words: *const u32,
    /// How many rows.
    pub n: usize,
    /// The words that are multiplied next: only a hint.
    pub ahead: *const u32,
}

/// A product of rows with a strip.
#[derive(Clone, Copy)]
pub struct StripProduct {
    /// Values of the rows, side by side for each input.
    pub rows: *const f32,
    /// Where rows are read next: any address will do.
    pub ahead: *const f32,
    /// Weights of each input, [`SUMS`] values from one to the next.
    pub strip: *const f32,
    /// Inputs of both.
    pub inputs: usize,
    /// Whether the sums begin at zero.
    pub begins: bool,
    /// Sums of each row, [`SUMS`] values from one to the next.
    pub sums: *mut f32,
}

impl StripProduct {
    /// The product with the strip that begins at an output.
    fn at(self, output: usize) -> Self {
        Self {
            strip: self.strip.wrapping_add(output),
            sums: self.sums.wrapping_add(output),
            ..self
        }
    }

    /// # Safety
    /// As [`Widened::multiply`].
    #[inline(always)]
    unsafe fn run<S: Lanes, const STRIP: usize>(self, rows: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => S::multiply_strip::<1, STRIP>(self),
                2 => S::multiply_strip::<2, STRIP>(self),
                3 => S::multiply_strip::<3, STRIP>(self),
                STRIP_ROWS => S::multiply_strip::<STRIP_ROWS, STRIP>(self),
                _ => unreachable!("a group has 1 to {STRIP_ROWS} rows, not {rows}"),
            }
        }
    }
}
