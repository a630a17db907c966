//! How the work on an image is cut into units: each is one part of the computation for a block of rows.
//!
//! The units follow from the tower, the image's grid and the most operations of a unit, so that the planner and the
//! tower cut an image alike. A block's rows do not share sums, so the cut changes no bits.

use std::ops::Range;

use super::{TowerConfig, TowerGrid};
use souffleur_kernels::vision::BLOCK_PATCHES;

/// The most operations of a unit: some tens of milliseconds on two cores, and no more than a text model with 270
/// million parameters needs for 16 tokens, the fewest of a prefill step. Smaller units would read the weights too often.
pub const UNIT_FLOPS: u64 = 1 << 33;

/// A unit of work. Units run in order: those of a layer's first part, then those of its second part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// The embedding of a block of patches.
    Embed(usize),
    /// Queries, keys and values of a block.
    Project { layer: usize, block: usize },
    /// Attention of a block to all patches, and its MLP.
    Attend { layer: usize, block: usize },
    /// The vectors of a block that the output of a layer gives, for one of the first layers of the text model.
    Deepstack { set: usize, block: usize },
    /// The projection of a block of vectors.
    Vectors(usize),
}

/// Consecutive rows in blocks of equal size, of which the last one may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    n_rows: usize,
    size: usize,
}

impl Blocks {
    /// Blocks of about `most` rows, at most, of which each but the last one is a multiple of `multiple`; blocks of
    /// `multiple` rows if that is more.
    fn new(n_rows: usize, most: u64, multiple: usize) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let most = (most - most % multiple).max(multiple);
        let count = n_rows.div_ceil(most).max(1);
        Self {
            n_rows,
            size: n_rows.div_ceil(count).next_multiple_of(multiple).max(1),
        }
    }

    pub fn n_rows(self) -> usize {
        self.n_rows
    }

    pub fn count(self) -> usize {
        self.n_rows.div_ceil(self.size)
    }

    /// Rows of the first block.
    pub fn largest(self) -> usize {
        self.size.min(self.n_rows)
    }

    pub fn rows(self, block: usize) -> Range<usize> {
        block * self.size..self.n_rows.min((block + 1) * self.size)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub patches: Blocks,
    pub vectors: Blocks,
    n_layers: usize,
    /// The layers whose outputs give further vectors, ascending.
    deepstack: Vec<usize>,
}

impl Cut {
    /// Units of at most `unit_flops` operations, or of the fewest rows that a block may have.
    pub fn new(config: &TowerConfig, grid: TowerGrid, unit_flops: u64) -> Self {
        let n = grid.n_patches();
        let (layer, block) = (0, 0);
        let parts = [
            Unit::Embed(block),
            Unit::Project { layer, block },
            Unit::Attend { layer, block },
        ];
        let costs = parts.map(|unit| config.row_flops(unit, n));
        let dearest = costs.into_iter().fold(1, u64::max);
        let of_vector = config.row_flops(Unit::Vectors(block), n).max(1);
        let n_vectors = n / (config.merge * config.merge);
        Self {
            patches: Blocks::new(n, unit_flops / dearest, BLOCK_PATCHES),
            vectors: Blocks::new(n_vectors, unit_flops / of_vector, 1),
            n_layers: config.n_layers,
            deepstack: config.deepstack.clone(),
        }
    }

    pub fn n_units(&self) -> usize {
        let n_sets = 1 + self.deepstack.len();
        (1 + 2 * self.n_layers) * self.patches.count() + n_sets * self.vectors.count()
    }

    /// # Panics
    /// If the image has no patches.
    pub fn unit(&self, index: usize) -> Unit {
        let (n_blocks, n_vectors) = (self.patches.count(), self.vectors.count());
        if index < n_blocks {
            return Unit::Embed(index);
        }
        // The units after those of the embedding and of the layers before.
        let mut left = index - n_blocks;
        for layer in 0..self.n_layers {
            let block = left % n_blocks;
            match left / n_blocks {
                0 => return Unit::Project { layer, block },
                1 => return Unit::Attend { layer, block },
                _ => left -= 2 * n_blocks,
            }
            if let Some(set) = self.deepstack.iter().position(|read| *read == layer) {
                if left < n_vectors {
                    return Unit::Deepstack { set, block: left };
                }
                left -= n_vectors;
            }
        }
        Unit::Vectors(left)
    }

    /// The rows of a unit: patches, or vectors.
    pub fn rows(&self, unit: Unit) -> Range<usize> {
        match unit {
            Unit::Embed(block) | Unit::Project { block, .. } | Unit::Attend { block, .. } => {
                self.patches.rows(block)
            }
            Unit::Deepstack { block, .. } | Unit::Vectors(block) => self.vectors.rows(block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_rows_and_are_about_equal() {
        for n_rows in [1, 15, 16, 17, 100, 4096] {
            for most in [0, 1, 16, 40, 292, 4096, u64::MAX] {
                for multiple in [1, BLOCK_PATCHES] {
                    let blocks = Blocks::new(n_rows, most, multiple);
                    let all: Vec<usize> = (0..blocks.count())
                        .flat_map(|block| blocks.rows(block))
                        .collect();
                    assert!(all.into_iter().eq(0..n_rows), "{n_rows}, {most}");
                    let size = blocks.rows(0).len();
                    assert_eq!(size, blocks.largest());
                    assert!(size as u64 <= most.max(multiple as u64), "{n_rows}, {most}");
                    let is_whole = blocks.count() == 1 || size.is_multiple_of(multiple);
                    assert!(is_whole, "{n_rows}, {most}");
                }
            }
        }
        // Not one block of 2,096 rows and one of 2,000.
        assert_eq!(Blocks::new(4096, 2100, 16).rows(0), 0..2048);
        assert_eq!(Blocks::new(0, 5, 16).count(), 0);
    }

    #[test]
    fn units_are_in_order() {
        let cut = Cut {
            patches: Blocks::new(20, 16, 16),
            vectors: Blocks::new(5, 2, 1),
            n_layers: 2,
            deepstack: vec![1],
        };
        let units: Vec<Unit> = (0..cut.n_units()).map(|index| cut.unit(index)).collect();
        let layer = 0;
        assert_eq!(
            units,
            [
                Unit::Embed(0),
                Unit::Embed(1),
                Unit::Project { layer, block: 0 },
                Unit::Project { layer, block: 1 },
                Unit::Attend { layer, block: 0 },
                Unit::Attend { layer, block: 1 },
                Unit::Project { layer: 1, block: 0 },
                Unit::Project { layer: 1, block: 1 },
                Unit::Attend { layer: 1, block: 0 },
                Unit::Attend { layer: 1, block: 1 },
                Unit::Deepstack { set: 0, block: 0 },
                Unit::Deepstack { set: 0, block: 1 },
                Unit::Deepstack { set: 0, block: 2 },
                Unit::Vectors(0),
                Unit::Vectors(1),
                Unit::Vectors(2),
            ]
        );
        assert_eq!(cut.rows(units[1]), 16..20);
        assert_eq!(cut.rows(units[12]), 4..5);
        assert_eq!(cut.rows(units[15]), 4..5);
    }
}
