//! Stacked matrices of equal width, each in the format of its own weights.

use smallvec::SmallVec;

use super::format::{Encoding, FormatRule};
use super::matrix::{Matrix, Parts};
use super::memory::WeightArena;
use super::simd::Isa;
use super::threads::ThreadPool;
use crate::kernels::tensor_view::TensorView;

/// Most stored tensors in a stack.
const MAX_PARTS: usize = 3;

/// The encodings that the products of a stack read.
pub type Encodings = SmallVec<[Encoding; MAX_PARTS]>;

/// Weights `[outputs, inputs]`, stacked in order: neighbours of one format are one matrix.
pub struct Stack {
    /// Number of outputs.
    pub outputs: usize,
    /// Number of inputs.
    pub inputs: usize,
    sections: SmallVec<[Matrix; 1]>,
    encodings: Encodings,
}

impl Stack {
    /// Packs tensors of equal width, stacked in order, on all threads, into memory of `arena`.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        arena: &mut WeightArena,
        rule: FormatRule,
        parts: &[TensorView<'_>],
    ) -> Self {
        let inputs = parts[0].shape[1];
        let mut outputs = 0;
        let mut sections: SmallVec<[Matrix; 1]> = SmallVec::new();
        let mut encodings = Encodings::new();
        for same in parts.chunk_by(|a, b| rule.format(a.stored) == rule.format(b.stored)) {
            let format = rule.format(same[0].stored);
            let encoding = format.encoding(isa);
            if !encodings.contains(&encoding) {
                encodings.push(encoding);
            }
            let same = Parts {
                tensors: same,
                first_output: outputs,
            };
            let section = Matrix::pack((&mut *pool, isa), arena, format, same);
            outputs += section.outputs;
            sections.push(section);
        }
        assert!(
            sections.iter().all(|section| section.inputs == inputs),
            "stacked matrices have equal width"
        );
        Self {
            outputs,
            inputs,
            sections,
            encodings,
        }
    }

    /// The matrices.
    pub fn sections(&self) -> &[Matrix] {
        &self.sections
    }

    /// The encodings of activations that its products read, each once.
    pub fn encodings(&self) -> &[Encoding] {
        &self.encodings
    }

    /// Whether the first half of the outputs and the second alternate, panel by panel.
    pub fn alternates(&self) -> bool {
        matches!(self.sections.as_slice(), [only] if only.alternates())
    }

    /// Reads the weights of one output of a stack of one part, an embedding.
    ///
    /// # Panics
    /// If `output` is beyond the outputs, or `out` not as long as the inputs.
    pub fn read_row(&self, output: usize, out: &mut [f32]) {
        self.sections[0].read_row(output, out);
    }
}
