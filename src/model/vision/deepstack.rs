//! Vectors from the outputs of some layers of a tower, for the first layers of the text model (DeepStack, arXiv
//! 2406.04334). As in the projector, blocks of patches are joined; the norm is that of a block.

use std::ops::Range;

use super::loader::TowerLoader;
use super::parts::deepstack_scope;
use souffleur_base::error::LoadError;
use souffleur_kernels::Linear;
use souffleur_kernels::vision::{Activation, JoinOrder, LayerNorm, VisionOps};

/// The projector of one layer's output.
pub(super) struct DeepstackMerger<B: VisionOps> {
    /// Patches of a block.
    group: usize,
    norm: LayerNorm<B>,
    fc1: Linear<B>,
    activation: Activation,
    fc2: Linear<B>,
}

impl<B: VisionOps> DeepstackMerger<B> {
    pub fn load_all(loader: &mut TowerLoader<'_, B>) -> Result<Vec<Self>, LoadError> {
        let sets = 0..loader.config().deepstack.len();
        sets.map(|set| Self::load(loader, set)).collect()
    }

    fn load(loader: &mut TowerLoader<'_, B>, set: usize) -> Result<Self, LoadError> {
        let config = loader.config();
        let scope = deepstack_scope(config, loader.checkpoint.source, set);
        Ok(Self {
            group: config.merge * config.merge,
            norm: loader.layer_norm(scope, "norm", config.eps)?,
            fc1: loader.linear(scope, &["fc1"], true)?,
            activation: config.projector_activation,
            fc2: loader.linear(scope, &["fc2"], true)?,
        })
    }

    /// The vectors of these indices.
    ///
    /// # Shapes
    /// `x`: blocks of all patches of the image, `[n, hidden]` each; result `[vectors.len(), text_width]`.
    pub fn vectors(&self, backend: &mut B, x: &[&B::Tensor], vectors: Range<usize>) -> B::Tensor {
        let patches = vectors.start * self.group..vectors.end * self.group;
        let patches: Vec<u32> = patches.map(|patch| patch as u32).collect();
        let gathered = backend.gather_rows(x, &patches);
        let rows: Vec<u32> = (0..patches.len() as u32).collect();
        let joined = backend.join_rows(&gathered, &rows, self.group, JoinOrder::Rows);
        drop(gathered);
        let normed = backend.layer_norm(&joined, &self.norm);
        drop(joined);
        let operand = backend.operand(&normed, &self.fc1.weight);
        let mut inner = backend.project(&operand, &self.fc1);
        backend.activate(&mut inner, self.activation);
        let operand = backend.operand(&inner, &self.fc2.weight);
        backend.project(&operand, &self.fc2)
    }
}

/// For each vector those of all sets: `[n_vectors, sets * width]` from sets of `[n_vectors, width]`.
pub(super) fn side_by_side(sets: &[Vec<f32>], n_vectors: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(sets.iter().map(Vec::len).sum());
    for vector in 0..n_vectors {
        for set in sets {
            let width = set.len() / n_vectors;
            values.extend_from_slice(&set[vector * width..][..width]);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_all_sets_are_side_by_side() {
        let sets = [vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0, 7.0, 8.0]];
        let values = side_by_side(&sets, 2);
        assert_eq!(values, [1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0]);
        assert_eq!(side_by_side(&sets[..1], 2), sets[0]);
    }
}
