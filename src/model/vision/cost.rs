//! The work and the memory of an encoding, known before it begins.

use super::cut::{Cut, UNIT_FLOPS, Unit};
use super::{TowerConfig, TowerGrid};
use souffleur_kernels::dtype::{Dtype, MatrixRole, Quantization};

/// Attention computes blocks of eight queries, with room for their scores and for themselves.
const QUERIES: usize = 8;
const LANES: usize = 16;

impl TowerConfig {
    /// Floating-point operations of each unit of the work on an image, two for each multiply-add. A unit has at most
    /// `unit_flops`, unless a block has the fewest patches. An image that the tower cannot encode has one unit.
    pub fn work(&self, grid: TowerGrid, unit_flops: u64) -> Vec<u64> {
        if self.n_vectors(grid).is_err() {
            return vec![1];
        }
        let cut = Cut::new(self, grid, unit_flops);
        let flops = |index: usize| {
            let unit = cut.unit(index);
            cut.rows(unit).len() as u64 * self.row_flops(unit, grid.n_patches())
        };
        (0..cut.n_units()).map(flops).collect()
    }

    /// Operations of a unit for each of its rows, for an image of `n` patches.
    pub(super) fn row_flops(&self, unit: Unit, n: usize) -> u64 {
        let product = |[outputs, inputs]: [usize; 2]| 2 * outputs as u64 * inputs as u64;
        let projection = product([self.hidden, self.attended()]);
        match unit {
            Unit::Embed(_) => product([self.hidden, self.patch_dim()]),
            Unit::Project { .. } => 3 * projection,
            Unit::Attend { .. } => {
                let n_mlp = if self.is_gated() { 3 } else { 2 };
                let mlp = n_mlp * product([self.hidden, self.intermediate]);
                projection + mlp + 4 * n as u64 * self.attended() as u64
            }
            Unit::Deepstack { .. } | Unit::Vectors(_) => {
                self.projector_shapes().into_iter().map(product).sum()
            }
        }
    }

    pub fn total_flops(&self, grid: TowerGrid) -> u64 {
        self.work(grid, u64::MAX).into_iter().sum()
    }

    /// The largest sum of the tensors that an encoding has at a time, in bytes, with this number of compute threads and
    /// units of at most [`UNIT_FLOPS`]. An image of several views needs no more than one view with all their patches:
    /// the views before have only their vectors, and those after it nothing.
    pub fn encoding_bytes(&self, grid: TowerGrid, threads: usize) -> u64 {
        let n = grid.n_patches();
        let cut = Cut::new(self, grid, UNIT_FLOPS);
        let (block, vectors) = (cut.patches.largest(), cut.vectors.largest());
        let (hidden, attended, patch) = (self.hidden, self.attended(), self.patch_dim());
        let rotations = if self.rotates() { n * self.head_dim } else { 0 };
        // The values of a block's patches and positions are on the host too, when they are copied.
        let embed = n * hidden + rotations + block * (3 * patch + 4 * hidden + self.head_dim);
        let panels = n.next_multiple_of(LANES);
        let packed_values = n * self.n_heads * self.head_dim.next_multiple_of(LANES);
        // The residual stream, keys, values and queries.
        let kept = n * hidden + rotations + panels * attended + packed_values + n * attended;
        let attention = threads * QUERIES * (panels + LANES + self.head_dim)
            + block * (2 * hidden + 4 * attended);
        let n_inner = if self.is_gated() { 4 } else { 2 };
        let mlp = block * (2 * hidden + n_inner * self.intermediate);
        let n_vectors = n / (self.merge * self.merge);
        let further = self.deepstack.len() * n_vectors * self.text_width;
        // Buffers of the embedding that are too long or too short for queries stay until the end.
        let left = block * (patch + hidden);
        let layer = left + kept + further + attention.max(mlp);
        let widths = self.projector_shapes().into_iter().flatten();
        let widest = widths.max().unwrap_or(0);
        let merger = vectors * (3 * self.joined() + 3 * widest);
        let all = further + n_vectors * self.text_width;
        // While a layer's output is projected, keys are kept too.
        let projector = left
            + merger
            + if further > 0 {
                kept + all
            } else {
                n * hidden + all
            };
        // At the end, all vectors, their copies on the host, and these side by side.
        let copies = 3 * all;
        let most = embed.max(layer).max(projector).max(copies);
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
