//! Implements [`VisionOps`] for the CPU.

mod activation;
mod attention;
mod layer_norm;
mod rows;

use super::tensor::Tensor;
use super::{CpuBackend, norms};
use crate::vision::{Activation, Columns, ImageHeads, JoinOrder, LayerNorm, PatchGrid, VisionOps};

impl VisionOps for CpuBackend {
    fn upload(&mut self, values: &[f32], width: usize) -> Tensor {
        assert!(
            values.len().is_multiple_of(width),
            "{} values are not rows of {width}",
            values.len()
        );
        let mut out = self.scratch.tensor(values.len() / width, width);
        out.values_mut().copy_from_slice(values);
        out
    }

    fn download(&mut self, x: &Tensor) -> Vec<f32> {
        x.values().to_vec()
    }

    fn layer_norm(&mut self, x: &Tensor, norm: &LayerNorm<Self>) -> Tensor {
        let out = self.scratch.tensor(x.rows(), x.width());
        let weights = (norm.weight.as_slice(), norm.bias.as_slice());
        layer_norm::norm(&mut self.pool, self.isa, x, (weights, norm.eps), out)
    }

    fn activate(&mut self, x: &mut Tensor, activation: Activation) {
        activation::activate(&mut self.pool, self.isa, x, activation);
    }

    fn gate(
        &mut self,
        gates: Columns<'_, Tensor>,
        ups: Columns<'_, Tensor>,
        width: usize,
        activation: Activation,
    ) -> Tensor {
        let out = self.scratch.tensor(gates.rows.rows(), width);
        activation::gate(&mut self.pool, self.isa, (gates, ups), activation, out)
    }

    fn clamped(&mut self, x: &Tensor, bounds: [f32; 2]) -> Tensor {
        let out = self.scratch.tensor(x.rows(), x.width());
        rows::clamped(&mut self.pool, x, bounds, out)
    }

    fn standardize(&mut self, x: &mut Tensor, bias: &Vec<f32>, factor: &Vec<f32>) {
        rows::standardize(&mut self.pool, x, (bias, factor));
    }

    fn norm_heads(
        &mut self,
        x: &mut Tensor,
        (first, n_heads): (usize, usize),
        (weight, eps): (&Vec<f32>, f32),
    ) {
        norms::norm_heads(&mut self.pool, self.isa, x, (first, n_heads), (weight, eps));
    }

    fn rotate_heads(&mut self, x: &mut Tensor, n_heads: usize, rotations: &Tensor, block: usize) {
        rows::rotate_heads(&mut self.pool, x, n_heads, rotations, block);
    }

    fn attend_image(
        &mut self,
        queries_keys_values: [Columns<'_, Tensor>; 3],
        heads: &ImageHeads,
    ) -> Tensor {
        let threads = (&mut self.pool, self.isa);
        attention::attend(threads, &self.scratch, queries_keys_values, heads)
    }

    fn join_rows(&mut self, x: &Tensor, rows: &[u32], group: usize, order: JoinOrder) -> Tensor {
        let out = self.scratch.tensor(rows.len() / group, group * x.width());
        rows::join(&mut self.pool, x, rows, (group, order), out)
    }

    fn pool(&mut self, x: &Tensor, grid: PatchGrid, side: usize) -> Tensor {
        let n_squares = (grid.h / side) * (grid.w / side);
        let out = self.scratch.tensor(n_squares, x.width());
        rows::pool(&mut self.pool, x, grid, side, out)
    }
}
