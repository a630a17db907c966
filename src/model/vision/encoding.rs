//! The encoding of one image, in units.

use std::ops::Range;

use super::cut::{Cut, Unit};
use super::deepstack::side_by_side;
use super::layer::ImageRotations;
use super::{Tower, TowerError, TowerGrid};
use souffleur_kernels::vision::{ImageKeys, VisionOps};

/// Returns the patches of an image with these indices, in the order, and their values in the order and range, that the
/// model's image processor gives them: `[indices.len(), patch_dim]`.
pub type PatchesOf<'a> = dyn Fn(Range<usize>) -> Vec<f32> + 'a;

/// An image that is being encoded: it owns the activations, and frees them when it is dropped.
///
/// Its units are parts of the embedding of patches, of each layer, and of the projector. Bits do not depend on the size
/// of units, on how they are divided among calls, on other work of the backend between them, or on threads.
pub struct Encoding<B: VisionOps> {
    grid: TowerGrid,
    cut: Cut,
    /// The next unit.
    unit: usize,
    /// The image's patches that are embedded, in order.
    blocks: Vec<Block<B>>,
    /// Of the current layer; from the first layer to the last one.
    keys: Option<ImageKeys<B>>,
    /// Blocks of vectors, as the projector makes them, and then those that outputs of layers give: for each set.
    sets: Vec<Vec<B::Tensor>>,
}

/// A block of patches.
struct Block<B: VisionOps> {
    /// The residual stream.
    rows: B::Tensor,
    rotations: Option<ImageRotations<B>>,
    /// Between the two parts of a layer.
    queries: Option<B::Tensor>,
}

impl<B: VisionOps> Encoding<B> {
    pub(super) fn new(grid: TowerGrid, cut: Cut) -> Self {
        Self {
            grid,
            cut,
            unit: 0,
            blocks: Vec::new(),
            keys: None,
            sets: Vec::new(),
        }
    }

    pub fn grid(&self) -> TowerGrid {
        self.grid
    }

    /// The next unit to compute, from 0; see [`super::TowerConfig::work`].
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// The units that are left.
    pub fn remaining(&self) -> usize {
        self.cut.n_units() - self.unit
    }

    pub fn is_done(&self) -> bool {
        self.remaining() == 0
    }

    /// Computes the next units, at most `units`. The first ones read the patches, each those of its block.
    ///
    /// # Errors
    /// [`TowerError::WrongValues`] if a block of patches has another length; the unit can be computed again.
    ///
    /// # Panics
    /// If another tower began this encoding.
    pub fn advance(
        &mut self,
        tower: &Tower<B>,
        backend: &mut B,
        units: usize,
        patches: &PatchesOf<'_>,
    ) -> Result<(), TowerError> {
        assert_eq!(
            self.cut,
            tower.cut(self.grid),
            "an encoding must stay with its tower"
        );
        for _ in 0..units.min(self.remaining()) {
            self.compute(tower, backend, patches)?;
            self.unit += 1;
        }
        Ok(())
    }

    fn compute(
        &mut self,
        tower: &Tower<B>,
        backend: &mut B,
        patches: &PatchesOf<'_>,
    ) -> Result<(), TowerError> {
        let unit = self.cut.unit(self.unit);
        let rows = self.cut.rows(unit);
        match unit {
            Unit::Embed(_) => {
                let values = patches(rows.clone());
                let (rows, rotations) = tower.embed(backend, &values, self.grid, rows)?;
                self.blocks.push(Block {
                    rows,
                    rotations,
                    queries: None,
                });
            }
            Unit::Project { layer, block } => {
                let grid = self.grid;
                let keys = self.keys.get_or_insert_with(|| tower.keys(backend, grid));
                let block = &mut self.blocks[block];
                let rotations = block.rotations.as_ref();
                let layer = tower.layer(layer);
                let queries = layer.project(backend, &block.rows, rotations, (keys, rows.start));
                block.queries = Some(queries);
            }
            Unit::Attend { layer, block } => {
                let block = &mut self.blocks[block];
                let parts = (block.queries.take(), self.keys.as_ref());
                let (Some(queries), Some(keys)) = parts else {
                    unreachable!("the first part of a layer comes before the second one");
                };
                let layer = tower.layer(layer);
                layer.add(backend, &mut block.rows, queries, keys);
            }
            Unit::Deepstack { set, .. } => {
                let vectors = tower.deepstack(backend, set, &self.patches(), rows);
                self.add(1 + set, vectors);
            }
            Unit::Vectors(_) => {
                self.keys = None;
                let vectors = tower.project(backend, &self.patches(), self.grid, rows);
                self.add(0, vectors);
            }
        }
        Ok(())
    }

    /// The residual stream.
    fn patches(&self) -> Vec<&B::Tensor> {
        self.blocks.iter().map(|block| &block.rows).collect()
    }

    /// Adds a block of vectors to a set.
    fn add(&mut self, set: usize, vectors: B::Tensor) {
        let n_sets = self.sets.len().max(set + 1);
        self.sets.resize_with(n_sets, Vec::new);
        self.sets[set].push(vectors);
    }

    /// The vectors, row by row: `[n_vectors, out_width]`.
    ///
    /// # Panics
    /// Unless the encoding is done.
    pub fn into_vectors(self, backend: &mut B) -> Vec<f32> {
        assert!(self.is_done(), "{} units are left", self.remaining());
        let mut sets = self.sets.iter().map(|blocks| -> Vec<f32> {
            let blocks = blocks.iter();
            blocks.flat_map(|block| backend.download(block)).collect()
        });
        if self.sets.len() == 1 {
            return sets.next().unwrap_or_default();
        }
        let sets: Vec<Vec<f32>> = sets.collect();
        side_by_side(&sets, self.cut.vectors.n_rows())
    }
}
