//! The operations that need the other ranks.

use super::{GemmWrite, Linear, MatrixRole, Tensor};
use crate::cuda::backend::CudaBackend;
use crate::shard::Rank;

impl CudaBackend {
    /// The number of rows of zeros to add to a rank's part of the output projection with `outputs` rows, so that all
    /// ranks compute the same number of logits.
    pub(super) fn padding(&self, outputs: usize, roles: &[MatrixRole]) -> usize {
        let each = self.vocab.div_ceil(self.rank.count());
        match roles {
            [MatrixRole::Logits] if self.rank != Rank::ONLY => each.saturating_sub(outputs),
            _ => 0,
        }
    }

    /// Adds the sum of all ranks' products to the residual stream, which is the same on all ranks.
    ///
    /// Rank 0 adds its product to its stream, the others put theirs in the place of the stream, and the streams are
    /// added up. So the sum needs no other buffer and no further kernel.
    pub(super) fn add_over_ranks(
        &mut self,
        residual: &Tensor,
        x: &Tensor,
        linear: &Linear<CudaBackend>,
    ) {
        if self.rank.is_first() {
            let bias = linear.bias.as_ref();
            self.multiply(x, &linear.weight, bias, residual, GemmWrite::AddF32);
        } else {
            self.multiply(x, &linear.weight, None, residual, GemmWrite::StoreF32);
        }
        let (values, len) = (residual.f32(), x.rows * residual.width);
        // SAFETY: the tensor has these values, and is used on this stream only; its memory outlives the graphs.
        self.collect(|link, stream| unsafe { link.sum(stream, values, len) });
    }

    /// Gathers the ranks' parts of each row, in rank order.
    pub(super) fn gather_from_ranks(&mut self, part: &Tensor) -> Tensor {
        let (rows, width) = (part.rows, part.width);
        let n_parts = rows * self.rank.count();
        // A part of a row after another: all rows of rank 0 first.
        let by_rank = self.f32(n_parts, width);
        let (to, own) = (by_rank.f32(), (part.f32(), rows * width));
        // SAFETY: as in `add_over_ranks`; `by_rank` has space for the parts of all ranks.
        self.collect(|link, stream| unsafe { link.gather(stream, own, to) });
        let out = self.f32(rows, self.rank.count() * width);
        let order = self.gather_order(rows);
        let shape = [n_parts as u32, width as u32];
        // SAFETY: as in `multiply`; the order names parts of `by_rank`.
        self.launch(|launches, stream| unsafe {
            let embed = &launches.embed;
            embed.pick(stream, out.f32(), by_rank.f32(), order, shape)
        });
        out
    }
}
