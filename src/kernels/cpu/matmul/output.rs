//! Epilogue of matrix products: adds bias, applies gates and writes a tile's sums to the output.

use std::ops::Range;

use super::super::element::load_up_to;
use super::super::format::Encoding;
use super::super::gates::silu;
use super::super::matrix::{Matrix, Panel};
use super::super::packing::{Pairs, Rounded, pack_panel};
use super::super::panel::{MAX_ROWS, PANEL, SUMS, Sums};
use super::super::simd::{LANES, Lanes};
use super::super::tensor::Shared;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Store,
    Add,
    /// Adds each row, times its weight, to the row of the output that `Output::weighted` names.
    AddWeighted,
    /// The first half of the outputs is gate, the second half up: `silu(gate) * up`.
    GatedSilu,
    /// As [`Self::GatedSilu`], but the output is `PackedRows` words in [`Encoding::Bf16`].
    GatedPairs,
    /// As [`Self::GatedPairs`], but in [`Encoding::WideBf16`].
    GatedRounded,
    /// As [`Self::GatedPairs`], but in [`Encoding::Bf16Rows`]; does not write the padding of rows.
    GatedRows,
}

impl Write {
    pub fn is_gated(self) -> bool {
        !matches!(self, Self::Store | Self::Add | Self::AddWeighted)
    }

    /// The encoding of the output if it is `PackedRows` words: rows of all encodings are in groups of the same size.
    fn encoding(self) -> Option<Encoding> {
        match self {
            Self::GatedPairs => Some(Encoding::Bf16),
            Self::GatedRounded => Some(Encoding::WideBf16),
            Self::GatedRows => Some(Encoding::Bf16Rows),
            Self::Store | Self::Add | Self::AddWeighted | Self::GatedSilu => None,
        }
    }

    /// Words for this number of outputs in a row, without padding; `None` if the output is not `PackedRows` words.
    fn packed_words(self, outputs: usize) -> Option<usize> {
        Some(match self.encoding()? {
            Encoding::Bf16Rows => Encoding::Bf16.row_words(outputs),
            other => other.row_words(outputs),
        })
    }

    pub fn columns(self, outputs: usize) -> usize {
        match self {
            Self::Store | Self::Add | Self::AddWeighted => outputs,
            _ => match self.encoding() {
                Some(encoding) => encoding.row_words(outputs / 2),
                None => outputs / 2,
            },
        }
    }
}

/// Number of panels of a matrix; if gated, of pairs of panels.
pub fn panels_of(weight: &Matrix, write: Write) -> usize {
    if write.is_gated() {
        weight.panels().len() / 2
    } else {
        weight.panels().len()
    }
}

#[derive(Clone, Copy)]
pub struct Panels {
    pub first: usize,
    pub n: usize,
    pub step: usize,
}

impl Panels {
    pub fn adjacent(first: usize, n: usize) -> Self {
        Self { first, n, step: 1 }
    }

    /// `n` panels of gates from the gates' panel `first` on, and the up panels that match them.
    pub fn alternating(first: usize, n: usize) -> (Self, Self) {
        let every_other = |first| Self { first, n, step: 2 };
        (every_other(2 * first), every_other(2 * first + 1))
    }

    pub fn index(self, n: usize) -> usize {
        self.first + n * self.step
    }
}

#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// Which outputs each panel of the weight holds.
    pub panels: &'a [Panel],
    pub bias: Option<&'a [f32]>,
    /// `[rows, columns]`.
    pub out: Shared<'a, f32>,
    pub columns: usize,
    pub write: Write,
    pub weighted: Option<WeightedRows<'a>>,
}

/// The output row and the weight of each row of a product, for [`Write::AddWeighted`].
#[derive(Clone, Copy)]
pub struct WeightedRows<'a> {
    pub rows: &'a [u32],
    pub weights: &'a [f32],
}

impl Output<'_> {
    #[inline(always)]
    fn target(&self, row: usize) -> usize {
        match self.weighted {
            Some(to) => to.rows[row] as usize,
            None => row,
        }
    }

    #[inline(always)]
    fn is_row_major(&self) -> bool {
        self.write == Write::GatedRows
    }

    /// The factor of a row's values before they are added, in all lanes; 1 if rows have no weights.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn weight<S: Lanes>(&self, row: usize) -> S::V {
        let weight = match self.weighted {
            Some(to) => to.weights[row],
            None => 1.0,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { S::splat(weight) }
    }

    /// Writes sixteen values of a row with this weight to `to`.
    ///
    /// # Safety
    /// `to` holds sixteen values that no other thread reads or writes; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn put_at<S: Lanes>(&self, weight: S::V, value: S::V, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let merged = match (self.write, self.weighted) {
                (Write::Add, _) => S::add(S::load(to), value),
                (_, Some(_)) => S::mul_add(weight, value, S::load(to)),
                _ => value,
            };
            S::store(to, merged);
        }
    }

    /// Prefetches the output of a tile, which other threads have written.
    #[inline(always)]
    pub fn fetch<S: Lanes>(&self, rows: Range<usize>, panels: Panels) {
        let firsts = (0..panels.n).map(|n| self.panels[panels.index(n)].first as usize);
        if let (Some(words), false) = (self.write.packed_words(PANEL), self.is_row_major()) {
            for first in firsts {
                let start = rows.start * self.columns + first / PANEL * words * rows.len();
                for word in (0..words * rows.len()).step_by(LANES) {
                    // SAFETY: only a hint; `dispatch` detected the instruction set.
                    unsafe { S::prefetch_write(self.out.at(start + word)) };
                }
            }
            return;
        }
        for row in rows {
            let start = self.target(row) * self.columns;
            for first in firsts.clone() {
                let first = self.write.packed_words(first).unwrap_or(first);
                // SAFETY: only a hint; `dispatch` detected the instruction set.
                unsafe { S::prefetch_write(self.out.at(start + first)) };
            }
        }
    }

    #[inline(always)]
    pub fn put<S: Lanes>(&self, rows: Range<usize>, panels: Panels, sums: &Sums) {
        let first = self.panels[panels.first].first;
        // Checks every panel: the position of the last panel does not show that all are adjacent.
        let is_whole = (0..panels.n).all(|n| {
            let panel = self.panels[panels.index(n)];
            panel.first == first + (n * PANEL) as u32 && panel.len == PANEL as u32
        });
        for (m, row) in rows.enumerate() {
            if !is_whole {
                for n in 0..panels.n {
                    let panel = self.panels[panels.index(n)];
                    self.put_part::<S>(row, panel, self.biased::<S>(sums, m, n, panel));
                }
                continue;
            }
            // SAFETY: no other item writes these columns of these rows; the tile has written these sums; `dispatch`
            // detected the instruction set.
            unsafe {
                let start = self.target(row) * self.columns + first as usize;
                let out = self.out.part(start, panels.n * PANEL).as_mut_ptr();
                let weight = self.weight::<S>(row);
                for n in 0..panels.n {
                    let panel = Panel {
                        first: first + (n * PANEL) as u32,
                        len: PANEL as u32,
                    };
                    let value = self.biased::<S>(sums, m, n, panel);
                    self.put_at::<S>(weight, value, out.wrapping_add(n * PANEL));
                }
            }
        }
    }

    #[inline(always)]
    pub fn put_gated<S: Lanes>(
        &self,
        rows: Range<usize>,
        (gate_panels, gates): (Panels, &Sums),
        (up_panels, ups): (Panels, &Sums),
    ) {
        let mut gated = [0f32; MAX_ROWS * LANES];
        for n in 0..gate_panels.n {
            let panel = self.panels[gate_panels.index(n)];
            let up_panel = self.panels[up_panels.index(n)];
            for (values, m) in gated.chunks_exact_mut(LANES).zip(0..rows.len()) {
                let gate = self.biased::<S>(gates, m, n, panel);
                let up = self.biased::<S>(ups, m, n, up_panel);
                // SAFETY: sixteen values; `dispatch` detected the instruction set.
                unsafe { S::store(values.as_mut_ptr(), S::mul(silu::<S>(gate), up)) };
            }
            self.put_values::<S>(rows.clone(), panel, &gated);
        }
    }

    #[inline(always)]
    fn put_values<S: Lanes>(&self, rows: Range<usize>, panel: Panel, values: &[f32]) {
        let words_of = |values: u32| self.write.packed_words(values as usize);
        let (Some(before), Some(len)) = (words_of(panel.first), words_of(panel.len)) else {
            for (values, row) in values.chunks_exact(LANES).zip(rows) {
                // SAFETY: sixteen values; `dispatch` detected the instruction set.
                self.put_part::<S>(row, panel, unsafe { S::load(values.as_ptr()) });
            }
            return;
        };
        let n_rows = rows.len();
        // SAFETY: no other item writes these columns of these rows; `dispatch` detected the instruction set.
        unsafe {
            if self.is_row_major() {
                for (values, row) in values.chunks_exact(LANES).zip(rows) {
                    let out = self.out.part(row * self.columns + before, len);
                    pack_panel::<S, Pairs>(values, 1, bytemuck::cast_slice_mut(out));
                }
                return;
            }
            let first = rows.start * self.columns + before * n_rows;
            let out = bytemuck::cast_slice_mut(self.out.part(first, len * n_rows));
            match self.write {
                Write::GatedPairs => pack_panel::<S, Pairs>(values, n_rows, out),
                _ => pack_panel::<S, Rounded>(values, n_rows, out),
            }
        }
    }

    /// Row `m` of the sums of a tile's panel `n`, with the bias added.
    #[inline(always)]
    fn biased<S: Lanes>(&self, sums: &Sums, m: usize, n: usize, panel: Panel) -> S::V {
        let Panel { first, len } = panel;
        let sums = sums
            .as_ptr()
            .cast::<f32>()
            .wrapping_add(m * SUMS + n * PANEL);
        // SAFETY: the tile has written these sixteen sums; `bias` holds as many as are loaded; `dispatch` detected the
        // instruction set.
        unsafe {
            let value = S::load(sums);
            match self.bias {
                None => value,
                Some(bias) => S::add(
                    value,
                    load_up_to::<S>(&bias[first as usize..][..len as usize]),
                ),
            }
        }
    }

    #[inline(always)]
    fn put_part<S: Lanes>(&self, row: usize, panel: Panel, value: S::V) {
        // SAFETY: no other item writes these columns of this row.
        let out = unsafe {
            let start = self.target(row) * self.columns + panel.first as usize;
            self.out.part(start, panel.len as usize)
        };
        let mut padded = [0f32; LANES];
        // SAFETY: `out`, or its padded copy, holds sixteen values; `dispatch` detected the instruction set.
        unsafe {
            let weight = self.weight::<S>(row);
            if out.len() == LANES {
                self.put_at::<S>(weight, value, out.as_mut_ptr());
                return;
            }
            padded[..out.len()].copy_from_slice(out);
            self.put_at::<S>(weight, value, padded.as_mut_ptr());
        }
        out.copy_from_slice(&padded[..out.len()]);
    }
}
