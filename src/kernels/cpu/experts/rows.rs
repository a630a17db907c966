//! Activations of experts' rows, packed: those of an expert stand together, in groups of their own.

use super::super::activations::{Activations, RowGroups, most_group_rows, uninit_words};
use super::super::format::{Encoding, n_groups};
use super::super::packing::pack_group;
use super::super::simd::Isa;
use super::super::tensor::{Scratch, Shared, Tensor};
use super::super::threads::ThreadPool;
use super::routes::ActiveExpert;

/// Multiply-adds that encoding a value costs about.
const VALUE_COST: usize = 64;

/// Rows as products with experts read them.
pub struct ExpertRows {
    /// The words, as bits.
    words: Tensor,
    inputs: usize,
    encoding: Encoding,
    most_group_rows: usize,
}

impl ExpertRows {
    /// Takes memory for rows; their content is arbitrary.
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
            most_group_rows: most_group_rows(isa),
        }
    }

    /// Encodes the rows of `source` in the groups of the experts.
    pub fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        scratch: &Scratch,
        encoding: Encoding,
        source: Activations<'_>,
        groups: &[(u32, u32)],
    ) -> Self {
        let rows = groups.last().map_or(0, |last| last.1 as usize);
        let mut packed = Self::uninit(scratch, isa, encoding, rows, source.inputs);
        let row_words = packed.words.width();
        let words: &mut [u32] = bytemuck::cast_slice_mut(packed.words.values_mut());
        let words = Shared::new(words);
        pool.for_each_in_runs(groups.len(), rows * source.inputs * VALUE_COST, &|group| {
            let (start, end) = (groups[group].0 as usize, groups[group].1 as usize);
            // SAFETY: each group is written by one item.
            let out = unsafe { words.part(start * row_words, (end - start) * row_words) };
            pack_group(isa, encoding, source, start..end, out);
        });
        packed
    }

    /// Values of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How they are encoded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The rows of an expert.
    pub fn of(&self, active: &ActiveExpert) -> RowGroups<'_> {
        let ActiveExpert { first, rows, .. } = *active;
        let row_words = self.words.width();
        let words: &[u32] = bytemuck::cast_slice(self.words.values());
        RowGroups {
            words: &words[first * row_words..(first + rows) * row_words],
            first,
            rows,
            row_words,
            encoding: self.encoding,
            n_groups: n_groups(rows, self.most_group_rows),
        }
    }

    /// The words of all rows, as bits, to write.
    pub fn words_mut(&mut self) -> &mut Tensor {
        &mut self.words
    }
}
