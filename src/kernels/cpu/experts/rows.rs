//! Packed activations for MoE: the rows of an expert in a block of tokens are contiguous, or picked by index.

use super::super::activations::{RowGroups, max_group_rows, uninit_words};
use super::super::format::{Encoding, n_groups};
use super::super::packing::pack_group;
use super::super::row_source::Activations;
use super::super::simd::Isa;
use super::super::tensor::{Scratch, Shared, Tensor};
use super::super::threads::ThreadPool;
use super::routes::ActiveExpert;

/// The encoding of rows that are not copied for each expert: bf16-pair products read scattered rows as fast as
/// contiguous ones.
pub const PICKED: Encoding = Encoding::Bf16;

const VALUE_COST: usize = 64;

pub struct ExpertRows<'a> {
    words: Tensor,
    /// Index of each row in `words`, unless `words` has the rows in the order of the experts.
    picked: Option<&'a [u32]>,
    inputs: usize,
    encoding: Encoding,
    max_group_rows: usize,
}

impl<'a> ExpertRows<'a> {
    pub fn uninit(
        scratch: &Scratch,
        isa: Isa,
        encoding: Encoding,
        rows: usize,
        inputs: usize,
    ) -> Self {
        Self {
            words: uninit_words(scratch, encoding, rows, inputs),
            picked: None,
            inputs,
            encoding,
            max_group_rows: max_group_rows(isa),
        }
    }

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

    /// Encodes all rows of `x`; the experts' rows are picked from them.
    ///
    /// # Panics
    /// If a picked row does not exist in `x`.
    pub fn picked(
        (pool, isa): (&mut ThreadPool, Isa),
        scratch: &Scratch,
        x: &Tensor,
        picked: &'a [u32],
    ) -> Self {
        let (rows, inputs) = (x.rows(), x.width());
        assert!(picked.iter().all(|row| (*row as usize) < rows));
        let mut packed = Self::uninit(scratch, isa, PICKED, rows, inputs);
        packed.picked = Some(picked);
        let row_words = packed.words.width();
        let words: &mut [u32] = bytemuck::cast_slice_mut(packed.words.values_mut());
        let words = Shared::new(words);
        let source = Activations::plain(x.values(), inputs);
        pool.for_each_in_runs(rows, rows * inputs * VALUE_COST, &|row| {
            // SAFETY: each row is written by one item.
            let out = unsafe { words.part(row * row_words, row_words) };
            pack_group(isa, PICKED, source, row..row + 1, out);
        });
        packed
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn of(&self, active: &ActiveExpert) -> RowGroups<'_> {
        let ActiveExpert { first, rows, .. } = *active;
        let row_words = self.words.width();
        let words: &[u32] = bytemuck::cast_slice(self.words.values());
        let (words, picked) = match self.picked {
            Some(picked) => (words, Some(&picked[first..first + rows])),
            None => (&words[first * row_words..(first + rows) * row_words], None),
        };
        RowGroups {
            words,
            picked,
            first,
            rows,
            row_words,
            encoding: self.encoding,
            n_groups: n_groups(rows, self.max_group_rows),
        }
    }

    pub fn words_mut(&mut self) -> &mut Tensor {
        &mut self.words
    }
}
