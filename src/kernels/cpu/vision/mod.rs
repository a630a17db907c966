//! Implements [`VisionOps`] for the CPU.

mod activation;
mod attention;
mod layer_norm;
mod rows;

use super::tensor::Tensor;
use super::{CpuBackend, norms};
use crate::vision::{
    Activation, Columns, ImageHeads, ImageKeys, JoinOrder, LayerNorm, PatchGrid, VisionOps,
};

impl VisionOps for CpuBackend {
    fn upload(&mut self, values: &[f32], width: usize) -> Tensor {
        assert!(
            values.len().is_multiple_of(width),
            "{} values are not rows of {width}",
            values.len()
        );
        let mut out = self.image_scratch.tensor(values.len() / width, width);
        out.values_mut().copy_from_slice(values);
        out
    }

    fn keep(&mut self, x: Columns<'_, Tensor>, width: usize) -> Tensor {
        let out = self.image_scratch.tensor(x.rows.rows(), width);
        rows::copied(&mut self.pool, x, out)
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

    fn image_keys(&mut self, n_patches: usize, heads: &ImageHeads) -> ImageKeys<Self> {
        let (rows, width) = attention::room(n_patches, heads);
        ImageKeys {
            kept: self.image_scratch.tensor(rows, width),
            n_patches,
        }
    }

    fn keep_keys(
        &mut self,
        keys: &mut ImageKeys<Self>,
        first: usize,
        [new_keys, values]: [Columns<'_, Tensor>; 2],
        heads: &ImageHeads,
    ) {
        let place = (first, keys.n_patches);
        attention::pack(
            &mut self.pool,
            (new_keys, values),
            heads,
            place,
            &mut keys.kept,
        );
    }

    fn attend_image(
        &mut self,
        queries: Columns<'_, Tensor>,
        keys: &ImageKeys<Self>,
        heads: &ImageHeads,
    ) -> Tensor {
        let threads = (&mut self.pool, self.isa);
        let packed = (&keys.kept, keys.n_patches);
        attention::attend(threads, &self.scratch, queries, packed, heads)
    }

    fn gather_rows(&mut self, blocks: &[&Tensor], rows: &[u32]) -> Tensor {
        let out = self.scratch.tensor(rows.len(), blocks[0].width());
        rows::gather(&mut self.pool, blocks, rows, out)
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
