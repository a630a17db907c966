//! The per-head matrices of latent attention (MLA).

use smallvec::SmallVec;

use super::super::matmul::{HeadsProduct, multiply_heads};
use super::super::simd::Isa;
use super::super::stack::{Encodings, Stack};
use super::super::tensor::{Scratch, Tensor};
use super::super::threads::ThreadPool;
use super::head_rows::{HeadColumns, HeadRows};

pub struct HeadMatrices {
    heads: Vec<Stack>,
    encodings: Encodings,
}

impl HeadMatrices {
    /// # Panics
    /// If there are no heads, or their shapes differ.
    pub fn new(heads: Vec<Stack>) -> Self {
        let shape = |stack: &Stack| (stack.outputs, stack.inputs);
        let first = shape(&heads[0]);
        assert!(
            heads.iter().all(|other| shape(other) == first),
            "heads must have equal shapes"
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
