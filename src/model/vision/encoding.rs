//! The encoding of one image, in stages.

use super::deepstack::side_by_side;
use super::layer::ImageRotations;
use super::{Tower, TowerGrid};
use souffleur_kernels::vision::VisionOps;

/// An image that is being encoded: it owns the activations, and frees them when it is dropped.
///
/// The stages are the embedding of patches, each layer, and the projector. Bits do not depend on how stages are divided
/// among calls, on other work of the backend between them, or on threads.
pub struct Encoding<B: VisionOps> {
    grid: TowerGrid,
    /// The next stage.
    stage: usize,
    n_stages: usize,
    /// Patches before the first stage, vectors after the last one, and the residual stream between.
    rows: B::Tensor,
    /// Further vectors, in the order of the layers from whose outputs they are.
    deepstack: Vec<B::Tensor>,
    n_vectors: usize,
    rotations: Option<ImageRotations<B>>,
}

impl<B: VisionOps> Encoding<B> {
    pub(super) fn new(
        grid: TowerGrid,
        patches: B::Tensor,
        (n_vectors, n_stages): (usize, usize),
    ) -> Self {
        Self {
            grid,
            stage: 0,
            n_stages,
            rows: patches,
            deepstack: Vec::new(),
            n_vectors,
            rotations: None,
        }
    }

    pub fn grid(&self) -> TowerGrid {
        self.grid
    }

    /// The next stage to compute, from 0; see [`super::TowerConfig::stage_flops`].
    pub fn stage(&self) -> usize {
        self.stage
    }

    /// The stages that are left.
    pub fn remaining(&self) -> usize {
        self.n_stages - self.stage
    }

    pub fn is_done(&self) -> bool {
        self.remaining() == 0
    }

    /// Computes the next stages, at most `stages`.
    ///
    /// # Panics
    /// If another tower began this encoding.
    pub fn advance(&mut self, tower: &Tower<B>, backend: &mut B, stages: usize) {
        assert_eq!(
            self.n_stages,
            tower.config().n_stages(),
            "an encoding must stay with its tower"
        );
        for _ in 0..stages.min(self.remaining()) {
            self.compute(tower, backend);
            self.stage += 1;
        }
    }

    fn compute(&mut self, tower: &Tower<B>, backend: &mut B) {
        if self.stage == 0 {
            (self.rows, self.rotations) = tower.embed(backend, &self.rows, self.grid);
        } else if self.stage + 1 < self.n_stages {
            let rotations = self.rotations.as_ref();
            let layer = self.stage - 1;
            tower.add_layer(backend, layer, &mut self.rows, rotations);
            let vectors = tower.deepstack(backend, layer, &self.rows, self.grid);
            self.deepstack.extend(vectors);
        } else {
            self.rotations = None;
            self.rows = tower.project(backend, &self.rows, self.grid);
        }
    }

    /// The vectors, row by row: `[n_vectors, out_width]`.
    ///
    /// # Panics
    /// Unless the encoding is done.
    pub fn into_vectors(self, backend: &mut B) -> Vec<f32> {
        assert!(self.is_done(), "{} stages are left", self.remaining());
        let vectors = backend.download(&self.rows);
        if self.deepstack.is_empty() {
            return vectors;
        }
        let further = self.deepstack.iter().map(|set| backend.download(set));
        let sets: Vec<Vec<f32>> = std::iter::once(vectors).chain(further).collect();
        side_by_side(&sets, self.n_vectors)
    }
}
