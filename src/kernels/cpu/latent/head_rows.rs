//! Packed per-head parts of rows, operands of the per-head matrices in latent attention (MLA).

use super::super::activations::{RowGroups, max_group_rows};
use super::super::format::{Encoding, even_part, n_groups};
use super::super::packing::pack_group;
use super::super::row_source::Activations;
use super::super::simd::Isa;
use super::super::tensor::{Scratch, Shared, Tensor};
use super::super::threads::ThreadPool;

const VALUE_COST: usize = 64;

/// Columns of `x` that hold each head's part.
#[derive(Clone, Copy)]
pub struct HeadColumns<'a> {
    pub x: &'a Tensor,
    pub first: usize,
    pub stride: usize,
}

/// Packed parts of rows, contiguous for each head.
pub struct HeadRows {
    words: Tensor,
    rows: usize,
    inputs: usize,
    encoding: Encoding,
    n_groups: usize,
}

impl HeadRows {
    pub(super) fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        scratch: &Scratch,
        encoding: Encoding,
        from: HeadColumns<'_>,
        [heads, inputs]: [usize; 2],
    ) -> Self {
        let rows = from.x.rows();
        let n_groups = n_groups(rows, max_group_rows(isa));
        let mut words = scratch.tensor(heads * rows, encoding.row_words(inputs));
        let row_words = words.width();
        let out: &mut [u32] = bytemuck::cast_slice_mut(words.values_mut());
        let out = Shared::new(out);
        let cost = heads * rows * inputs * VALUE_COST;
        pool.for_each_in_runs(heads * n_groups, cost, &|item| {
            let (head, group) = (item / n_groups, item % n_groups);
            let first = from.first + head * from.stride;
            let source = Activations::columns(from.x.values(), from.x.width(), first, inputs);
            let rows_of_group = even_part(group, n_groups, rows);
            let start = (head * rows + rows_of_group.start) * row_words;
            // SAFETY: each group of a head is written by one item.
            let out = unsafe { out.part(start, rows_of_group.len() * row_words) };
            pack_group(isa, encoding, source, rows_of_group, out);
        });
        Self {
            words,
            rows,
            inputs,
            encoding,
            n_groups,
        }
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn of(&self, head: usize) -> RowGroups<'_> {
        let row_words = self.words.width();
        let words: &[u32] = bytemuck::cast_slice(self.words.values());
        RowGroups {
            words: &words[head * self.rows * row_words..][..self.rows * row_words],
            first: 0,
            rows: self.rows,
            row_words,
            encoding: self.encoding,
            n_groups: self.n_groups,
            picked: None,
        }
    }
}
