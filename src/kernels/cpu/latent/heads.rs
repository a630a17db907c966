//! The matrices of heads, and the parts of rows that they multiply.

use smallvec::SmallVec;

use super::super::activations::{Activations, RowGroups, most_group_rows};
use super::super::format::{Encoding, group_rows, n_groups};
use super::super::matmul::{HeadsProduct, multiply_heads};
use super::super::packing::pack_group;
use super::super::simd::Isa;
use super::super::stack::{Encodings, Stack};
use super::super::tensor::{Scratch, Shared, Tensor};
use super::super::threads::ThreadPool;

/// Multiply-adds that encoding a value costs about.
const VALUE_COST: usize = 64;

/// A matrix for each head of a layer.
pub struct HeadMatrices {
    heads: Vec<Stack>,
    /// The encodings that any of their products read.
    encodings: Encodings,
}

/// Where each head's part of a row begins, and how far the parts are from each other.
#[derive(Clone, Copy)]
pub struct HeadColumns<'a> {
    /// The rows.
    pub x: &'a Tensor,
    /// The column where the first head's part begins.
    pub first: usize,
    /// Columns from one head to the next.
    pub step: usize,
}

impl HeadMatrices {
    /// Takes matrices of equal shapes.
    ///
    /// # Panics
    /// If there is none, or their shapes differ.
    pub fn new(heads: Vec<Stack>) -> Self {
        let shape = |stack: &Stack| (stack.outputs, stack.inputs);
        let first = shape(&heads[0]);
        assert!(
            heads.iter().all(|other| shape(other) == first),
            "heads of equal shapes"
        );
        let mut encodings = Encodings::new();
        for encoding in heads.iter().flat_map(Stack::encodings) {
            if !encodings.contains(encoding) {
                encodings.push(*encoding);
            }
        }
        Self { heads, encodings }
    }

    /// Multiplies each head's part of each row; a head's result is at the start of its part of `out`.
    pub fn multiply(
        &self,
        (pool, isa): (&mut ThreadPool, Isa),
        scratch: &Scratch,
        from: HeadColumns<'_>,
        out: &mut Tensor,
    ) {
        let packed = self.encodings.iter().map(|encoding| {
            let shape = [self.heads.len(), self.heads[0].inputs];
            HeadRows::pack((&mut *pool, isa), scratch, *encoding, from, shape)
        });
        let packed: SmallVec<[HeadRows; 1]> = packed.collect();
        let product = HeadsProduct {
            x: &packed,
            heads: &self.heads,
            out,
        };
        multiply_heads(pool, isa, product);
    }
}

/// Parts of rows as products with heads' matrices read them: those of a head stand together.
pub struct HeadRows {
    /// The words, as bits.
    words: Tensor,
    rows: usize,
    inputs: usize,
    encoding: Encoding,
    n_groups: usize,
}

impl HeadRows {
    fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        scratch: &Scratch,
        encoding: Encoding,
        from: HeadColumns<'_>,
        [heads, inputs]: [usize; 2],
    ) -> Self {
        let rows = from.x.rows();
        let n_groups = n_groups(rows, most_group_rows(isa));
        let mut words = scratch.tensor(heads * rows, encoding.row_words(inputs));
        let row_words = words.width();
        let out: &mut [u32] = bytemuck::cast_slice_mut(words.values_mut());
        let out = Shared::new(out);
        let cost = heads * rows * inputs * VALUE_COST;
        pool.for_each_in_runs(heads * n_groups, cost, &|item| {
            let (head, group) = (item / n_groups, item % n_groups);
            let first = from.first + head * from.step;
            let source = Activations::columns(from.x.values(), from.x.width(), first, inputs);
            let rows_of_group = group_rows(group, n_groups, rows);
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

    /// Values of a part.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How they are encoded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The parts of a head.
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
