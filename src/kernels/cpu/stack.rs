//! Stacked weight matrices of equal width, each in its own format, divided among NUMA nodes.

use smallvec::SmallVec;

use super::format::{Encoding, Format, FormatRule};
use super::matrix::{Matrix, Parts};
use super::memory::WeightArena;
use super::simd::Isa;
use super::threads::ThreadPool;
use crate::dtype::MatrixRole;
use crate::shard::Shard;
use crate::tensor_view::TensorView;

const MAX_PARTS: usize = 4;

pub type Encodings = SmallVec<[Encoding; MAX_PARTS]>;

/// Weights `[outputs, inputs]`, stacked in order: adjacent parts of the same format form one matrix per NUMA node.
pub struct Stack {
    pub outputs: usize,
    pub inputs: usize,
    /// How ranks divide the matrix of which this is a part.
    pub shard: Shard,
    /// By node, then by output.
    sections: SmallVec<[Matrix; 1]>,
    encodings: Encodings,
    alternates: bool,
}

impl Stack {
    /// Packs tensors of equal width, stacked in order, on all threads, into `arena`. `roles` gives each tensor's use.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        arena: &mut WeightArena,
        rule: FormatRule,
        (parts, roles): (&[TensorView<'_>], &[MatrixRole]),
    ) -> Self {
        assert_eq!(parts.len(), roles.len(), "every part must have a role");
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
            for section in Matrix::pack((&mut *pool, isa), arena, format, same) {
                outputs += section.outputs;
                sections.push(section);
            }
        }
        let alternates = formats.iter().all(|format| *format == formats[0]);
        let alternates = alternates && sections[0].alternates();
        sections.sort_by_key(|section| section.node);
        assert!(
            sections.iter().all(|section| section.inputs == inputs),
            "stacked matrices must have equal width"
        );
        Self {
            outputs,
            inputs,
            shard: Shard::Whole,
            sections,
            encodings,
            alternates,
        }
    }

    /// By node. Stacks of one format have one matrix for each node.
    pub fn sections(&self) -> &[Matrix] {
        &self.sections
    }

    pub fn n_nodes(&self) -> usize {
        self.sections[self.sections.len() - 1].node + 1
    }

    /// The distinct encodings of activations for products with these weights.
    pub fn encodings(&self) -> &[Encoding] {
        &self.encodings
    }

    /// Whether panels of the first and second half of the outputs alternate.
    pub fn alternates(&self) -> bool {
        self.alternates
    }

    /// Reads the weights of one output of an unstacked matrix, such as an embedding table.
    ///
    /// # Panics
    /// If `output` is beyond the outputs, or `out` not as long as the inputs.
    pub fn read_row(&self, mut output: usize, out: &mut [f32]) {
        let (last, others) = self
            .sections
            .split_last()
            .expect("a stack must have a matrix");
        for section in others {
            if output < section.outputs {
                return section.read_row(output, out);
            }
            output -= section.outputs;
        }
        last.read_row(output, out);
    }
}
