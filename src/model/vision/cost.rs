//! The work and the memory of an encoding, known before it begins.

use super::{TowerConfig, TowerGrid};
use souffleur_kernels::dtype::{Dtype, MatrixRole, Quantization};

/// Attention computes blocks of eight queries, with room for their scores and for themselves.
const QUERIES: usize = 8;
const LANES: usize = 16;

impl TowerConfig {
    /// Floating-point operations of a stage, two for each multiply-add: 0 is the embedding of patches, the last stage
    /// the projector. 0 beyond the last stage.
    pub fn stage_flops(&self, grid: TowerGrid, stage: usize) -> u64 {
        let n = grid.n_patches() as u64;
        let product =
            |rows: u64, [outputs, inputs]: [usize; 2]| 2 * rows * outputs as u64 * inputs as u64;
        if stage == 0 {
            return product(n, [self.hidden, self.patch_dim()]);
        }
        if stage <= self.n_layers {
            let projections = 4 * product(n, [self.hidden, self.attended()]);
            let n_mlp = if self.is_gated() { 3 } else { 2 };
            let mlp = n_mlp * product(n, [self.hidden, self.intermediate]);
            return projections + mlp + 4 * n * n * self.attended() as u64;
        }
        if stage >= self.n_stages() {
            return 0;
        }
        let vectors = n / (self.merge * self.merge) as u64;
        let shapes = self.projector_shapes().into_iter();
        shapes.map(|shape| product(vectors, shape)).sum()
    }

    pub fn total_flops(&self, grid: TowerGrid) -> u64 {
        let stages = [0, 1, self.n_stages() - 1];
        let [embed, layer, projector] = stages.map(|stage| self.stage_flops(grid, stage));
        embed + self.n_layers as u64 * layer + projector
    }

    /// The largest sum of the tensors that an encoding has at a time, in bytes, with this number of compute threads.
    pub fn encoding_bytes(&self, grid: TowerGrid, threads: usize) -> u64 {
        let n = grid.n_patches();
        let (hidden, attended) = (self.hidden, self.attended());
        let kept = n * hidden + if self.rotates() { n * self.head_dim } else { 0 };
        let embed = n * (2 * self.patch_dim() + 3 * hidden + self.head_dim);
        let panels = n.next_multiple_of(LANES);
        let packed_values = n * self.n_heads * self.head_dim.next_multiple_of(LANES);
        let lanes = threads * QUERIES * (panels + LANES + self.head_dim);
        let packed = panels * attended + packed_values + lanes;
        let attention = kept + n * (2 * hidden + 4 * attended) + packed;
        let n_inner = if self.is_gated() { 4 } else { 2 };
        let mlp = kept + n * (2 * hidden + n_inner * self.intermediate);
        let vectors = n / (self.merge * self.merge);
        let widths = self.projector_shapes().into_iter().flatten();
        let widest = widths.max().unwrap_or(0);
        let projector = 3 * n * hidden + 3 * vectors * widest;
        let most = embed.max(attention).max(mlp).max(projector);
        most as u64 * Dtype::F32.bytes() as u64
    }

    /// Bytes of the weights: matrices in `dtype` or quantised, norms, biases and positions in f32.
    pub(super) fn weights_bytes(&self, dtype: Dtype, quantization: Option<Quantization>) -> u64 {
        let matrix = |[outputs, inputs]: [usize; 2]| {
            MatrixRole::Inner.bytes(dtype, quantization, [outputs as u64, inputs as u64])
        };
        let (hidden, attended) = (self.hidden, self.attended());
        let n_mlp = if self.is_gated() { 3 } else { 2 };
        let layer = 3 * matrix([attended, hidden])
            + matrix([hidden, attended])
            + n_mlp * matrix([self.intermediate, hidden]);
        // At most eight vectors of these widths: norms and biases.
        let vectors = 8 * (hidden + 3 * attended + self.intermediate) * Dtype::F32.bytes();
        let projector = self.projector_shapes().into_iter().map(matrix);
        let positions = self.position_rows() * hidden * Dtype::F32.bytes();
        matrix([hidden, self.patch_dim()])
            + self.n_layers as u64 * (layer + vectors as u64)
            + projector.sum::<u64>()
            + positions as u64
    }
}
