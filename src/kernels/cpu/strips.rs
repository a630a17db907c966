//! Matrix products of many rows with f32, f16 or bf16 weights on 256-bit registers.
//!
//! The tiles of [`super::tile`] widen weights anew for each group of rows, and four rows by one panel leave a quarter
//! of sixteen registers idle. Here the weights of up to [`MAX_PANELS`] panels are widened to f32 once for all groups of
//! an item, a part of the inputs at a time, so that they stay in L1. Each group is multiplied with *strips* of outputs:
//! three panels form two strips of 24 outputs, fewer panels one strip of 16 each. Sums are added in the same order as
//! in a tile; memory holds them between parts of the inputs.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::panel::{MAX_PANELS, PANEL, SUMS, Sums};
use super::simd::Lanes;
use super::strip_product::{NARROW_STRIP, STRIP_ROWS, StripProduct, WIDE_STRIP};
use super::tile::Plain;

pub const MOST_GROUPS: usize = 64;
/// Minimum groups of an item: for fewer, storing widened weights costs more than it saves.
pub const LEAST_GROUPS: usize = 4;

/// Inputs that are widened at once: with 48 outputs they take 18 KiB of an L1 of 32 KiB, so that rows fit as well.
pub const PART: usize = 96;

/// Weights of up to [`MAX_PANELS`] panels in f32, contiguous for each input, with a stride of [`SUMS`].
#[repr(align(64))]
pub struct WidenedWeights(MaybeUninit<[f32; SUMS * PART]>);

impl WidenedWeights {
    pub fn uninit() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Widens up to [`PART`] inputs of panels.
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
            // SAFETY: guaranteed by the caller; `inputs.len()` rows of `SUMS` values fit.
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

    /// As [`Self::fill`], and multiplies a group's rows: if strips are full, while the weights are in registers.
    ///
    /// # Safety
    /// As [`Self::fill`] and [`Self::multiply`].
    #[inline(always)]
    pub unsafe fn fill_and_multiply<S: Lanes, F: Plain, const N: usize>(
        &mut self,
        panels: [*const u32; N],
        inputs: Range<usize>,
        group: GroupPart<'_>,
    ) {
        debug_assert!(inputs.len() <= PART && inputs.len() == group.inputs);
        debug_assert!(inputs.len().is_multiple_of(F::ROW_WORDS));
        // SAFETY: guaranteed by the caller; a half of a panel's step is half of its words.
        unsafe {
            if !F::WIDENS_PAIRS || N != MAX_PANELS || group.n != STRIP_ROWS {
                self.fill::<S, F, N>(panels, inputs);
                self.multiply::<S>(group, N);
                return;
            }
            let half = |half: usize| {
                let step = inputs.start / F::ROW_WORDS * F::STEP_WORDS;
                panels[half / 2].wrapping_add(step + half % 2 * PANEL / 2)
            };
            let [first, second] = self.product(group).wide_strips();
            S::widen_strip(first, [half(0), half(1), half(2)]);
            S::widen_strip(second, [half(3), half(4), half(5)]);
        }
    }

    /// Multiplies the rows of a group with the widened inputs of `n_panels` panels.
    ///
    /// # Safety
    /// The group's inputs are the widened ones of `n_panels` panels; its sums hold earlier inputs unless it `begins`;
    /// the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn multiply<S: Lanes>(&mut self, group: GroupPart<'_>, n_panels: usize) {
        let rows = group.n;
        let product = self.product(group);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if n_panels == MAX_PANELS {
                for strip in product.wide_strips() {
                    strip.run::<S, WIDE_STRIP>(rows);
                }
                return;
            }
            for panel in 0..n_panels {
                product.at(panel * PANEL).run::<S, NARROW_STRIP>(rows);
            }
        }
    }

    #[inline(always)]
    fn product(&mut self, group: GroupPart<'_>) -> StripProduct {
        StripProduct {
            rows: group.words.cast(),
            ahead: group.ahead.cast(),
            strip: self.0.as_mut_ptr().cast(),
            inputs: group.inputs,
            begins: group.begins,
            sums: group.sums.as_mut_ptr().cast(),
        }
    }
}

/// Some inputs of the rows of a group, laid out as in [`super::activations::RowGroups`], and the rows' sums.
pub struct GroupPart<'a> {
    /// A word of each row for each input.
    pub words: *const u32,
    pub n: usize,
    pub inputs: usize,
    /// Prefetch hint: the words to multiply next.
    pub ahead: *const u32,
    /// Whether these are the first inputs, so that the sums start from zero.
    pub begins: bool,
    pub sums: &'a mut Sums,
}

impl StripProduct {
    fn at(self, output: usize) -> Self {
        Self {
            strip: self.strip.wrapping_add(output),
            sums: self.sums.wrapping_add(output),
            ..self
        }
    }

    /// The products with both strips of [`MAX_PANELS`] panels; with a hint, each prefetches half of the next rows.
    fn wide_strips(self) -> [Self; 2] {
        let half = self.inputs * STRIP_ROWS / 2;
        let second = Self {
            ahead: self.ahead.wrapping_add(half),
            ..self.at(WIDE_STRIP)
        };
        [self, second]
    }

    /// # Safety
    /// As [`WidenedWeights::multiply`].
    #[inline(always)]
    unsafe fn run<S: Lanes, const STRIP: usize>(self, rows: usize) {
        // SAFETY: guaranteed by the caller.
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
