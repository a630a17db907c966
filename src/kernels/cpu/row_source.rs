//! Reads rows of activations to encode, and interleaves the words of a group's rows.

use super::element::load_up_to;
use super::norms::norm_scale;
use super::simd::{EIGHT, FOUR, LANES, Lanes};

#[derive(Clone, Copy)]
pub struct Activations<'a> {
    pub x: &'a [f32],
    pub inputs: usize,
    /// Distance between rows.
    pub stride: usize,
    /// Indices of rows, in this order; `None` for all.
    pub picked: Option<&'a [u32]>,
    /// Weight and eps of an RMSNorm applied to each row.
    pub norm: Option<(&'a [f32], f32)>,
}

impl<'a> Activations<'a> {
    pub fn plain(x: &'a [f32], inputs: usize) -> Self {
        Self {
            x,
            inputs,
            stride: inputs,
            picked: None,
            norm: None,
        }
    }

    /// The `inputs` values from `first` on of rows of `width` values.
    ///
    /// # Panics
    /// If rows are narrower.
    pub fn columns(x: &'a [f32], width: usize, first: usize, inputs: usize) -> Self {
        assert!(
            first + inputs <= width,
            "{inputs} columns from {first} on exceed the width {width}"
        );
        Self {
            stride: width,
            ..Self::plain(x.get(first..).unwrap_or_default(), inputs)
        }
    }

    pub(super) fn n_rows(&self) -> usize {
        // The last row may end without padding.
        let between = self.stride - self.inputs;
        let all = (self.x.len() + between) / self.stride;
        assert!(
            (self.x.len() + between) % self.stride <= between,
            "values are not whole rows of {} inputs",
            self.inputs
        );
        self.picked.map_or(all, <[u32]>::len)
    }

    /// The values of a row, before any norm.
    pub fn row(&self, row: usize) -> &'a [f32] {
        let row = self.picked.map_or(row, |picked| picked[row] as usize);
        &self.x[row * self.stride..][..self.inputs]
    }
}

#[derive(Clone, Copy)]
pub struct RowSource<'a> {
    pub(super) x: &'a [f32],
    norm: Option<(&'a [f32], f32)>,
}

impl<'a> RowSource<'a> {
    pub(super) const EMPTY: Self = Self { x: &[], norm: None };

    #[inline(always)]
    pub(super) fn new<S: Lanes>(source: &Activations<'a>, index: usize) -> Self {
        let x = source.row(index);
        // A closure would be compiled without the instruction set.
        #[allow(clippy::manual_map)]
        let norm = match source.norm {
            Some((weight, eps)) => Some((weight, norm_scale::<S>(x, eps))),
            None => None,
        };
        Self { x, norm }
    }

    /// Sixteen values from `first` on, with zeros after the row's last value. `is_inside` skips the check for the end.
    ///
    /// # Safety
    /// The values are inside the row if `is_inside`; the instruction set of `S` was detected.
    #[inline(always)]
    pub(super) unsafe fn load_either<S: Lanes>(&self, first: usize, is_inside: bool) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if is_inside {
                self.load_inside::<S>(first)
            } else {
                self.load::<S>(first)
            }
        }
    }

    /// # Safety
    /// The row has sixteen values from `first` on; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn load_inside<S: Lanes>(&self, first: usize) -> S::V {
        debug_assert!(first + LANES <= self.x.len());
        // SAFETY: guaranteed by the caller; a norm's weight is as long as the row.
        unsafe {
            let x = S::load(self.x.as_ptr().wrapping_add(first));
            match self.norm {
                None => x,
                Some((weight, scale)) => {
                    let weight = S::load(weight.as_ptr().wrapping_add(first));
                    S::mul(S::mul(x, S::splat(scale)), weight)
                }
            }
        }
    }

    /// Sixteen values from `first` on; zeros after the last.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn load<S: Lanes>(&self, first: usize) -> S::V {
        // SAFETY: both hold sixteen values from `first` on, if `x` does; the caller detected the instruction set.
        unsafe {
            if first + LANES <= self.x.len() {
                return self.load_inside::<S>(first);
            }
            let values = first.min(self.x.len())..self.x.len();
            let x = load_up_to::<S>(&self.x[values.clone()]);
            match self.norm {
                None => x,
                Some((weight, scale)) => {
                    S::mul(S::mul(x, S::splat(scale)), load_up_to::<S>(&weight[values]))
                }
            }
        }
    }
}

/// Writes word `i` of row `m` to `out[i * rows + m]`, sixteen words of each row or as many as fit into `out`. Words of
/// `out` after those may be overwritten.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn scatter<S: Lanes>(words: [S::W; LANES], rows: usize, out: &mut [u32]) {
    // SAFETY: each store writes sixteen words, beyond the column's rows; `out` or `padded` has space for it.
    unsafe {
        if rows == EIGHT && out.len() >= LANES * EIGHT {
            let pairs = S::transpose_eight(std::array::from_fn(|i| words[i]));
            for (i, pair) in pairs.into_iter().enumerate() {
                S::store_words(out[i * LANES..].as_mut_ptr(), pair);
            }
            return;
        }
        if rows == FOUR && out.len() >= LANES * FOUR {
            let quads = S::transpose_four(std::array::from_fn(|i| words[i]));
            for (i, quad) in quads.into_iter().enumerate() {
                S::store_words(out[i * LANES..].as_mut_ptr(), quad);
            }
            return;
        }
        let columns = match rows {
            1 => words,
            _ => S::transpose(words),
        };
        let n_columns = if rows == 1 { 1 } else { LANES };
        let mut padded = [0u32; LANES * (LANES + 1)];
        let fits = out.len() >= LANES * rows + LANES;
        let to = if fits {
            out.as_mut_ptr()
        } else {
            padded.as_mut_ptr()
        };
        for i in 0..n_columns {
            S::store_words(to.wrapping_add(i * rows), columns[i]);
        }
        if !fits {
            let len = out.len().min(LANES * rows);
            out[..len].copy_from_slice(&padded[..len]);
        }
    }
}
