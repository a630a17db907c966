//! M-RoPE: the vectors of images have 3-D positions (time, row, column), text tokens one position.
//!
//! The kernel computes RoPE factors of every token from one position. The host then computes those of the images'
//! vectors and overwrites the kernel's: they are few, and small compared with the vectors. So the same kernel serves
//! text, with the same bits, whether a step has images or not.

use super::{CudaBackend, Tensor};
use crate::rope::Rope;

/// A token of a step with a 3-D M-RoPE position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridToken {
    /// Its index in the step.
    pub token: u32,
    /// Time, row and column.
    pub position: [u32; 3],
}

/// The frequencies of RoPE, and the component of the position that each pair uses, on the host.
pub(super) struct GridRope {
    inv_freq: Vec<f32>,
    axes: Vec<usize>,
    scale: f32,
}

impl GridRope {
    /// `None` if all pairs rotate by the same number.
    pub(super) fn of(rope: &Rope) -> Option<Self> {
        Some(Self {
            axes: rope.axes.clone()?,
            inv_freq: rope.inv_freq.clone(),
            scale: rope.attention_scale,
        })
    }

    /// Adds the cosines of a position, then its sines, rounded as the kernel rounds them.
    fn push(&self, position: [u32; 3], row: &mut Vec<f32>) {
        let angle =
            |(axis, frequency): (&usize, &f32)| f64::from(position[*axis] as f32 * frequency);
        let pairs = || self.axes.iter().zip(&self.inv_freq).map(angle);
        row.extend(pairs().map(|angle| angle.cos() as f32 * self.scale));
        row.extend(pairs().map(|angle| angle.sin() as f32 * self.scale));
    }
}

impl CudaBackend {
    /// Takes the tokens of the next step that rotate by three numbers, in ascending order.
    pub fn place_grid_tokens(&mut self, tokens: &mut Vec<GridToken>) {
        self.grid_tokens.clear();
        self.grid_tokens.append(tokens);
    }

    /// Enqueues copies of the RoPE factors of the step's tokens with 3-D positions.
    pub(super) fn rotate_grids(&mut self, rope: &GridRope, rotations: &Tensor) {
        let tokens = std::mem::take(&mut self.grid_tokens);
        let is_next = |a: &GridToken, b: &GridToken| b.token == a.token + 1;
        for run in tokens.chunk_by(is_next) {
            let mut rows = Vec::with_capacity(run.len() * rotations.width());
            run.iter()
                .for_each(|token| rope.push(token.position, &mut rows));
            self.upload_rows(rotations, run[0].token as usize, &rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_rotates_by_the_number_of_its_axis() {
        let mut rope = Rope {
            inv_freq: vec![1.0, 0.5, 0.25],
            axes: Some(vec![0, 2, 1]),
            attention_scale: 2.0,
            ..Rope::none()
        };
        let mut row = Vec::new();
        let grid = GridRope::of(&rope).expect("the model has M-RoPE");
        grid.push([7, 8, 10], &mut row);
        let angles = [7.0_f64, 5.0, 2.0];
        let cosines = angles.map(|angle| angle.cos() as f32 * 2.0);
        let sines = angles.map(|angle| angle.sin() as f32 * 2.0);
        assert_eq!(row, [cosines, sines].concat());
        rope.axes = None;
        assert!(GridRope::of(&rope).is_none());
    }
}
