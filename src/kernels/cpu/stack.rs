//! Stacked matrices of equal width, each in the format of its own weights.

use smallvec::SmallVec;

use super::format::{Encoding, Format, FormatRule};
use super::matrix::{Matrix, Parts};
use super::memory::WeightArena;
use super::simd::Isa;
use super::threads::ThreadPool;
use crate::kernels::dtype::MatrixRole;
use crate::kernels::tensor_view::TensorView;

/// Most stored tensors in a stack.
const MAX_PARTS: usize = 4;

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
    /// Packs tensors of equal width, stacked in order, on all threads, into memory of `arena`. `roles` says what each is for.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        arena: &mut WeightArena,
        rule: FormatRule,
        (parts, roles): (&[TensorView<'_>], &[MatrixRole]),
    ) -> Self {
        assert_eq!(parts.len(), roles.len(), "a role for each part");
        let inputs = parts[0].shape[1];
        let mut outputs = 0;
        let mut sections: SmallVec<[Matrix; 1]> = SmallVec::new();
        let mut encodings = Encodings::new();
        let formats = parts.iter().zip(roles);
        let formats = formats.map(|(part, role)| rule.of(*role).format(part.stored));
        let formats: SmallVec<[Format; MAX_PARTS]> = formats.collect();
        let mut rest = parts;
        for same in formats.chunk_by(PartialEq::eq) {
            let format = same[0];
            let (same, others) = rest.split_at(same.len());
            rest = others;
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
