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
            let attention = 4 * n * n * self.attended() as u64;
            let is_read = self.deepstack.contains(&(stage - 1));
            let deepstack = if is_read { self.merger_flops(n) } else { 0 };
            return projections + mlp + attention + deepstack;
        }
        if stage >= self.n_stages() {
            return 0;
        }
        self.merger_flops(n)
    }

    /// Operations of the projector, or of the equal one of a layer's output, for `n` patches.
    fn merger_flops(&self, n: u64) -> u64 {
        let vectors = n / (self.merge * self.merge) as u64;
        let shapes = self.projector_shapes().into_iter();
        let products = shapes.map(|[outputs, inputs]| 2 * vectors * outputs as u64 * inputs as u64);
        products.sum()
    }

    pub fn total_flops(&self, grid: TowerGrid) -> u64 {
        let stages = 0..self.n_stages();
        stages.map(|stage| self.stage_flops(grid, stage)).sum()
    }

    /// The largest sum of the tensors that an encoding has at a time, in bytes, with this number of compute threads.
    pub fn encoding_bytes(&self, grid: TowerGrid, threads: usize) -> u64 {
        let n = grid.n_patches();
        let (hidden, attended) = (self.hidden, self.attended());
        let vectors = n / (self.merge * self.merge);
        let n_sets = self.deepstack.len();
        let further = n_sets * vectors * self.text_width;
        let rotations = if self.rotates() { n * self.head_dim } else { 0 };
        let kept = n * hidden + rotations + further;
        let embed = n * (2 * self.patch_dim() + 3 * hidden + self.head_dim);
        let panels = n.next_multiple_of(LANES);
        let packed_values = n * self.n_heads * self.head_dim.next_multiple_of(LANES);
        let lanes = threads * QUERIES * (panels + LANES + self.head_dim);
        let packed = panels * attended + packed_values + lanes;
        let attention = kept + n * (2 * hidden + 4 * attended) + packed;
        let n_inner = if self.is_gated() { 4 } else { 2 };
        let mlp = kept + n * (2 * hidden + n_inner * self.intermediate);
        let widths = self.projector_shapes().into_iter().flatten();
        let widest = widths.max().unwrap_or(0);
        let projector = 3 * n * hidden + 3 * vectors * widest + further;
        // At the end, all vectors, their copies on the host, and these side by side.
        let copies = 3 * (further + vectors * self.text_width);
        let deepstack = if n_sets > 0 {
            copies.max(projector + kept)
        } else {
            0
        };
        let most = embed.max(attention).max(mlp).max(projector).max(deepstack);
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
        let projector: u64 = self.projector_shapes().into_iter().map(matrix).sum();
        let of_merger = 2 * self.joined() + self.projector_width + self.text_width;
        let merger = projector + (of_merger * Dtype::F32.bytes()) as u64;
        let positions = self.position_rows() * hidden * Dtype::F32.bytes();
        matrix([hidden, self.patch_dim()])
            + self.n_layers as u64 * (layer + vectors as u64)
            + projector
            + self.deepstack.len() as u64 * merger
            + positions as u64
    }
}
