//! Adds RMS-normalised rows to the residual stream.

use super::element::{load_up_to, store_up_to};
use super::norms::norm_scale;
use super::rows::for_rows;
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;

const ELEMENT_COST: usize = 64;

/// Adds RMS-normalised rows of `x` to `to`. A weight narrower than a row normalises each part of its width separately.
pub fn add_normed(
    pool: &mut ThreadPool,
    isa: Isa,
    to: &mut Tensor,
    x: &Tensor,
    (weight, eps): (&[f32], f32),
) {
    let (width, part) = (x.width(), weight.len());
    assert_eq!(
        [to.rows(), to.width()],
        [x.rows(), width],
        "shapes must be equal"
    );
    assert!(
        width.is_multiple_of(part),
        "rows of {width} values cannot be divided into parts of {part}"
    );
    let shared = Shared::new(to.values_mut());
    for_rows(pool, x.rows(), width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let to = unsafe { shared.part(row * width, width) };
        for (to, x) in to.chunks_exact_mut(part).zip(x.row(row).chunks_exact(part)) {
            dispatch(isa, AddNormed { to, x, weight, eps });
        }
    });
}

struct AddNormed<'a> {
    to: &'a mut [f32],
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for AddNormed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let scale = norm_scale::<S>(self.x, self.eps);
        let vectors = self.x.chunks(LANES).zip(self.weight.chunks(LANES));
        for ((x, weight), to) in vectors.zip(self.to.chunks_mut(LANES)) {
            // SAFETY: `load_up_to` and `store_up_to` stay within their slices; `dispatch` detected the instruction set.
            unsafe {
                let scaled = S::mul(load_up_to::<S>(x), S::splat(scale));
                let normed = S::mul(scaled, load_up_to::<S>(weight));
                store_up_to::<S>(S::add(load_up_to::<S>(to), normed), to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tensor::Scratch;

    #[test]
    fn parts_of_rows_are_normalised_separately() {
        let scratch = Scratch::default();
        let mut pool = ThreadPool::new(1).expect("threads start");
        let weight: Vec<f32> = (0..19).map(|i| 1.0 + i as f32 / 8.0).collect();
        let value = |row: usize, i: usize| ((row * 57 + i * 31) % 23) as f32 - 11.0;
        for isa in Isa::available() {
            let (mut to, mut x) = (scratch.tensor(2, 57), scratch.tensor(2, 57));
            for row in 0..2 {
                for i in 0..57 {
                    to.row_mut(row)[i] = 100.0 * row as f32;
                    x.row_mut(row)[i] = value(row, i);
                }
            }
            add_normed(&mut pool, isa, &mut to, &x, (&weight, 0.5));
            for (row, i) in (0..2).flat_map(|row| (0..57).map(move |i| (row, i))) {
                let part = i / 19 * 19;
                let squares: f32 = (part..part + 19).map(|i| value(row, i).powi(2)).sum();
                let normed = value(row, i) / (squares / 19.0 + 0.5).sqrt() * weight[i - part];
                let expected = 100.0 * row as f32 + normed;
                let got = to.row(row)[i];
                assert!(
                    (got - expected).abs() < 1e-4,
                    "{isa:?}, {row}, {i}: {got}, {expected}"
                );
            }
        }
    }
}
