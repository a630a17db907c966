//! The fate of the sums of a tile.

use std::ops::Range;

use super::super::element::load_up_to;
use super::super::format::{Encoding, PANEL};
use super::super::matrix::Panel;
use super::super::packing::scatter;
use super::super::rowwise::silu;
use super::super::simd::{LANES, Lanes};
use super::super::tensor::Shared;
use super::super::tile::{SUMS, Sums};

/// The use of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It replaces the output.
    Store,
    /// It is added to the output.
    Add,
    /// Each row, times its weight, is added to the row of the output that [`Output::weighted`] names.
    AddWeighted,
    /// The first half of the outputs are gates, the second half what they let through: `silu(gate) * up`.
    GatedSilu,
    /// The same, and the output is the words of `PackedRows` as [`Encoding::Bf16`].
    GatedPairs,
    /// The same as [`Encoding::WideBf16`].
    GatedRounded,
    /// The same as [`Encoding::Bf16Rows`], but for what pads a row.
    GatedRows,
}

impl Write {
    /// Whether the first half of the outputs are gates.
    pub fn is_gated(self) -> bool {
        !matches!(self, Self::Store | Self::Add | Self::AddWeighted)
    }

    /// The encoding that the output has, if it is the words of `PackedRows`: rows of all encodings are in groups of the same size.
    fn encoding(self) -> Option<Encoding> {
        match self {
            Self::GatedPairs => Some(Encoding::Bf16),
            Self::GatedRounded => Some(Encoding::WideBf16),
            Self::GatedRows => Some(Encoding::Bf16Rows),
            Self::Store | Self::Add | Self::AddWeighted | Self::GatedSilu => None,
        }
    }

    /// Words of a row that outputs take, if they are those of `PackedRows`; a padded row has more.
    fn packed_words(self, outputs: usize) -> Option<usize> {
        Some(match self.encoding()? {
            Encoding::Bf16Rows => Encoding::Bf16.row_words(outputs),
            other => other.row_words(outputs),
        })
    }

    /// Values of a row of the output of a product with so many outputs.
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

/// The panels of a tile.
#[derive(Clone, Copy)]
pub struct Panels {
    /// The first one.
    pub first: usize,
    /// How many.
    pub n: usize,
    /// From one to the next.
    pub step: usize,
}

impl Panels {
    /// `n` panels from `first` on.
    pub fn side_by_side(first: usize, n: usize) -> Self {
        Self { first, n, step: 1 }
    }

    /// `n` panels of gates from the gates' panel `first` on, and those of what they let through.
    pub fn alternating(first: usize, n: usize) -> (Self, Self) {
        let every_other = |first| Self { first, n, step: 2 };
        (every_other(2 * first), every_other(2 * first + 1))
    }

    /// Panel `n` of the tile.
    pub fn index(self, n: usize) -> usize {
        self.first + n * self.step
    }
}

/// Where a product goes, and how.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// Which outputs each panel of the weight holds.
    pub panels: &'a [Panel],
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// `[rows, columns]`.
    pub out: Shared<'a, f32>,
    /// Values in a row of `out`.
    pub columns: usize,
    /// The use of the sums.
    pub write: Write,
    /// Where rows go that are added with weights.
    pub weighted: Option<Weighted<'a>>,
}

/// Rows of an output that the rows of a product are added to.
#[derive(Clone, Copy)]
pub struct Weighted<'a> {
    /// The output's row for each row of the product.
    pub rows: &'a [u32],
    /// The factor of each row on the way.
    pub weights: &'a [f32],
}

impl Output<'_> {
    /// The row of the output that a row of the product goes to.
    #[inline(always)]
    fn target(&self, row: usize) -> usize {
        match self.weighted {
            Some(to) => to.rows[row] as usize,
            None => row,
        }
    }

    /// Whether the words of a row stand side by side.
    #[inline(always)]
    fn is_by_rows(&self) -> bool {
        self.write == Write::GatedRows
    }

    /// The new value of an output: `value` is the product's, `before` reads what is there.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn merged<S: Lanes>(&self, row: usize, value: S::V, before: &[f32]) -> S::V {
        // SAFETY: the caller's promise; `load_up_to` reads what is there.
        unsafe {
            match (self.write, self.weighted) {
                (Write::Add, _) => S::add(load_up_to::<S>(before), value),
                (_, Some(to)) => {
                    S::mul_add(S::splat(to.weights[row]), value, load_up_to::<S>(before))
                }
                _ => value,
            }
        }
    }

    /// Asks for what a tile will write: other threads have had it, and it is far away.
    #[inline(always)]
    pub fn fetch<S: Lanes>(&self, rows: Range<usize>, panels: Panels) {
        for n in 0..panels.n {
            let first = self.panels[panels.index(n)].first as usize;
            // SAFETY: only hints; `dispatch` detected the instruction set.
            unsafe {
                if let (Some(words), false) = (self.write.packed_words(PANEL), self.is_by_rows()) {
                    let before = first / PANEL * words;
                    let start = rows.start * self.columns + before * rows.len();
                    for word in (0..words * rows.len()).step_by(LANES) {
                        S::prefetch_write(self.out.at(start + word));
                    }
                    continue;
                }
                let first = self.write.packed_words(first).unwrap_or(first);
                for row in rows.clone() {
                    let row = self.target(row);
                    S::prefetch_write(self.out.at(row * self.columns + first));
                }
            }
        }
    }

    /// Puts a tile of panels side by side into a group's rows.
    #[inline(always)]
    pub fn put<S: Lanes>(&self, rows: Range<usize>, panels: Panels, sums: &Sums) {
        let first = self.panels[panels.first].first;
        // Parts of which others stand between are no neighbours, though their last one may end where these would.
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
            // SAFETY: no other item writes these columns; the tile has written these sums; `dispatch` detected the
            // instruction set.
            unsafe {
                let start = self.target(row) * self.columns + first as usize;
                let out = self.out.part(start, panels.n * PANEL);
                for n in 0..panels.n {
                    let out = &mut out[n * PANEL..][..PANEL];
                    let panel = Panel {
                        first: first + (n * PANEL) as u32,
                        len: PANEL as u32,
                    };
                    let value = self.biased::<S>(sums, m, n, panel);
                    let merged = self.merged::<S>(row, value, out);
                    S::store(out.as_mut_ptr(), merged);
                }
            }
        }
    }

    /// Puts the gated values of a tile into a group's rows.
    #[inline(always)]
    pub fn put_gated<S: Lanes>(
        &self,
        rows: Range<usize>,
        (gate_panels, gates): (Panels, &Sums),
        (up_panels, ups): (Panels, &Sums),
    ) {
        let n_rows = rows.len();
        // SAFETY: no other item writes these columns; lane arithmetic, `dispatch` detected the instruction set.
        unsafe {
            let mut words = [S::splat_word(0); LANES];
            for n in 0..gate_panels.n {
                let panel = self.panels[gate_panels.index(n)];
                let up_panel = self.panels[up_panels.index(n)];
                for (m, row) in rows.clone().enumerate() {
                    let gate = self.biased::<S>(gates, m, n, panel);
                    let up = self.biased::<S>(ups, m, n, up_panel);
                    let gated = S::mul(silu::<S>(gate), up);
                    match self.write {
                        Write::GatedPairs | Write::GatedRows => {
                            words[m] = S::pair_bf16(gated, S::splat(0.0));
                        }
                        Write::GatedRounded => words[m] = S::to_words(S::round_bf16(gated)),
                        _ => self.put_part::<S>(row, panel, gated),
                    }
                }
                let before = self.write.packed_words(panel.first as usize);
                let len = self.write.packed_words(panel.len as usize);
                if let (Some(before), Some(len)) = (before, len) {
                    if self.is_by_rows() {
                        for (m, row) in rows.clone().enumerate() {
                            let out = self.out.part(row * self.columns + before, len);
                            scatter::<S>([words[m]; LANES], 1, bytemuck::cast_slice_mut(out));
                        }
                        continue;
                    }
                    let first = rows.start * self.columns + before * n_rows;
                    let out = self.out.part(first, len * n_rows);
                    scatter::<S>(words, n_rows, bytemuck::cast_slice_mut(out));
                }
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

    /// Puts the values of a panel into a row of the output.
    #[inline(always)]
    fn put_part<S: Lanes>(&self, row: usize, panel: Panel, value: S::V) {
        // SAFETY: no other item writes these columns.
        let out = unsafe {
            let start = self.target(row) * self.columns + panel.first as usize;
            self.out.part(start, panel.len as usize)
        };
        // SAFETY: `out` and `padded` hold the values that are read and written; `dispatch` detected the instruction set.
        unsafe {
            let value = self.merged::<S>(row, value, out);
            if out.len() == LANES {
                S::store(out.as_mut_ptr(), value);
                return;
            }
            let mut padded = [0f32; LANES];
            S::store(padded.as_mut_ptr(), value);
            out.copy_from_slice(&padded[..out.len()]);
        }
    }
}
