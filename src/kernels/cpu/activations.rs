//! Activations packed for a matrix product: groups of rows, encoded to match the format of the weights.
//!
//! Norms and gated MLP activations write this encoding themselves, which saves a separate packing pass.

use super::format::{Encoding, even_part, n_groups};
use super::packing::pack_group;
use super::row_source::Activations;
use super::simd::{Isa, Kernel, Lanes, dispatch};
use super::strip_product::STRIP_ROWS;
use super::tensor::{Scratch, Shared, Tensor};
use super::threads::ThreadPool;
use super::tile::max_rows;

/// Approximate cost of encoding a value, in multiply-adds: mostly cache misses.
const VALUE_COST: usize = 64;

pub struct PackedRows {
    words: Tensor,
    inputs: usize,
    encoding: Encoding,
    n_groups: usize,
}

impl PackedRows {
    pub fn uninit(
        scratch: &Scratch,
        isa: Isa,
        encoding: Encoding,
        rows: usize,
        inputs: usize,
    ) -> Self {
        Self {
            words: uninit_words(scratch, encoding, rows, inputs),
            inputs,
            encoding,
            n_groups: n_groups(rows, max_group_rows(isa)),
        }
    }

    /// # Panics
    /// If the shapes do not match.
    pub fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        scratch: &Scratch,
        encoding: Encoding,
        source: Activations<'_>,
    ) -> Self {
        let (rows, inputs) = (source.n_rows(), source.inputs);
        assert!(
            source.norm.is_none_or(|(weight, _)| weight.len() == inputs),
            "the norm's weight must have {inputs} elements"
        );
        let mut packed = Self::uninit(scratch, isa, encoding, rows, inputs);
        let (n_groups, row_words) = (packed.n_groups, packed.row_words());
        let words: &mut [u32] = bytemuck::cast_slice_mut(packed.words.values_mut());
        let words = Shared::new(words);
        pool.for_each_in_runs(n_groups, rows * inputs * VALUE_COST, &|group| {
            let rows = even_part(group, n_groups, rows);
            // SAFETY: each group is written by one item.
            let out = unsafe { words.part(rows.start * row_words, rows.len() * row_words) };
            pack_group(isa, encoding, source, rows, out);
        });
        packed
    }

    pub fn rows(&self) -> usize {
        self.words.rows()
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn row_words(&self) -> usize {
        self.words.width()
    }

    pub fn groups(&self) -> RowGroups<'_> {
        RowGroups {
            words: bytemuck::cast_slice(self.words.values()),
            first: 0,
            rows: self.rows(),
            row_words: self.row_words(),
            encoding: self.encoding,
            n_groups: self.n_groups,
            picked: None,
        }
    }

    pub fn words_mut(&mut self) -> &mut Tensor {
        &mut self.words
    }
}

/// Rows that are multiplied with the same weights, in groups: all of [`PackedRows`], or those of an expert.
#[derive(Clone, Copy)]
pub struct RowGroups<'a> {
    /// Words of these rows, row after row; if `picked` is set, of all rows to which its indices may refer.
    pub words: &'a [u32],
    pub first: usize,
    pub rows: usize,
    pub row_words: usize,
    pub encoding: Encoding,
    pub n_groups: usize,
    /// Indices of the rows, in order, unless the rows are contiguous.
    pub picked: Option<&'a [u32]>,
}

impl<'a> RowGroups<'a> {
    /// Whether rows are contiguous, as AMX tiles need.
    pub fn is_row_major(&self) -> bool {
        matches!(self.encoding, Encoding::Bf16Rows | Encoding::Int8Rows)
    }

    /// Whether the size of groups and the encoding suit strips of weights (`strips`).
    pub fn may_use_strips(&self) -> bool {
        let is_f32 = matches!(self.encoding, Encoding::F32 | Encoding::WideBf16);
        is_f32 && self.rows <= self.n_groups * STRIP_ROWS
    }

    /// # Panics
    /// If the rows are picked.
    pub fn group(&self, group: usize) -> (std::ops::Range<usize>, &'a [u32]) {
        assert!(self.picked.is_none(), "picked rows are not contiguous");
        let rows = self.rows_of(group);
        let words = &self.words[rows.start * self.row_words..rows.end * self.row_words];
        (self.row_indices(rows), words)
    }

    pub fn rows_of(&self, group: usize) -> std::ops::Range<usize> {
        even_part(group, self.n_groups, self.rows)
    }

    pub fn row_indices(&self, rows: std::ops::Range<usize>) -> std::ops::Range<usize> {
        self.first + rows.start..self.first + rows.end
    }
}

/// Allocates the words of rows. The padding to whole tiles is zero, and stays zero when a product writes the rows.
pub fn uninit_words(scratch: &Scratch, encoding: Encoding, rows: usize, inputs: usize) -> Tensor {
    let row_words = encoding.row_words(inputs);
    let mut words = scratch.tensor(rows, row_words);
    if encoding == Encoding::Bf16Rows && row_words > inputs.div_ceil(2) {
        for row in words.values_mut().chunks_exact_mut(row_words) {
            row[inputs / 2..].fill(0.0);
        }
    }
    words
}

pub fn max_group_rows(isa: Isa) -> usize {
    dispatch(isa, GroupRows)
}

/// For tests.
impl PackedRows {
    /// The values of all rows after encoding as floats; quantised rows are not supported.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows() * self.inputs];
        for group in 0..self.n_groups {
            let (rows, words) = self.groups().group(group);
            let n = rows.len();
            for (m, row) in rows.enumerate() {
                let out = &mut values[row * self.inputs..][..self.inputs];
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f32::from_bits(match self.encoding {
                        Encoding::F32 | Encoding::WideBf16 => words[i * n + m],
                        Encoding::Bf16 if i % 2 == 0 => words[i / 2 * n + m] << 16,
                        Encoding::Bf16 => words[i / 2 * n + m] & 0xffff_0000,
                        Encoding::Bf16Rows => {
                            let pair = words[m * self.row_words() + i / 2];
                            [pair << 16, pair & 0xffff_0000][i % 2]
                        }
                        Encoding::Int8
                        | Encoding::Int8Rows
                        | Encoding::WideInt8
                        | Encoding::A32
                        | Encoding::A256 => unreachable!("tests must read only float encodings"),
                    });
                }
            }
        }
        values
    }
}

struct GroupRows;

impl Kernel for GroupRows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Lanes>(self) -> usize {
        max_rows::<S>()
    }
}
