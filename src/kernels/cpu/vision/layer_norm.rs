//! LayerNorm of rows.

use crate::cpu::element::{load_up_to, store_up_to};
use crate::cpu::rows::{ELEMENT_COST, for_rows};
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;

/// Weight and bias, each as wide as a row.
type Weights<'a> = (&'a [f32], &'a [f32]);

/// # Panics
/// If weight or bias are not as wide as the rows.
pub fn norm(
    pool: &mut ThreadPool,
    isa: Isa,
    x: &Tensor,
    ((weight, bias), eps): (Weights<'_>, f32),
    mut out: Tensor,
) -> Tensor {
    let width = x.width();
    assert_eq!(
        [weight.len(), bias.len()],
        [width, width],
        "the norm must be as wide as the rows"
    );
    let shared = Shared::new(out.values_mut());
    for_rows(pool, x.rows(), width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        let x = x.row(row);
        dispatch(
            isa,
            NormRow {
                x,
                out,
                weights: (weight, bias),
                eps,
            },
        );
    });
    out
}

struct NormRow<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    weights: Weights<'a>,
    eps: f32,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Self {
            x,
            out,
            weights: (weight, bias),
            eps,
        } = self;
        let n = x.len() as f32;
        // SAFETY: `load_up_to` and `store_up_to` stay within their slices; `dispatch` detected the instruction set.
        unsafe {
            let mut sums = S::splat(0.0);
            for x in x.chunks(LANES) {
                sums = S::add(sums, load_up_to::<S>(x));
            }
            let mean = S::sum(sums) / n;
            let mut squares = S::splat(0.0);
            for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
                store_up_to::<S>(S::sub(load_up_to::<S>(x), S::splat(mean)), out);
                // Read again, with zeros after the row's last value.
                let centred = load_up_to::<S>(out);
                squares = S::mul_add(centred, centred, squares);
            }
            let factor = 1.0 / (S::sum(squares) / n + eps).sqrt();
            let weights = weight.chunks(LANES).zip(bias.chunks(LANES));
            for ((weight, bias), out) in weights.zip(out.chunks_mut(LANES)) {
                let scaled = S::mul(load_up_to::<S>(out), S::splat(factor));
                let normed = S::mul(scaled, load_up_to::<S>(weight));
                store_up_to::<S>(S::add(normed, load_up_to::<S>(bias)), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tensor::Scratch;

    #[test]
    fn rows_of_any_width_are_centred_and_scaled() {
        let scratch = Scratch::default();
        let mut pool = ThreadPool::new(1).expect("threads start");
        let value = |row: usize, i: usize| ((row * 41 + i * 37) % 29) as f32 / 4.0 + 50.0;
        for (isa, width) in Isa::available()
            .into_iter()
            .flat_map(|isa| [1, 7, 16, 33, 72].map(|width| (isa, width)))
        {
            let mut x = scratch.tensor(3, width);
            for (row, i) in (0..3).flat_map(|row| (0..width).map(move |i| (row, i))) {
                x.row_mut(row)[i] = value(row, i);
            }
            let weight: Vec<f32> = (0..width).map(|i| 1.0 + i as f32 / 8.0).collect();
            let bias: Vec<f32> = (0..width).map(|i| i as f32 / 4.0 - 1.0).collect();
            let out = scratch.tensor(3, width);
            let out = norm(&mut pool, isa, &x, ((&weight, &bias), 0.25), out);
            for row in 0..3 {
                let values: Vec<f64> = x.row(row).iter().map(|x| f64::from(*x)).collect();
                let mean = values.iter().sum::<f64>() / width as f64;
                let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
                let deviation = (squares / width as f64 + 0.25).sqrt();
                for i in 0..width {
                    let expected =
                        (values[i] - mean) / deviation * f64::from(weight[i]) + f64::from(bias[i]);
                    let error = (f64::from(out.row(row)[i]) - expected).abs();
                    assert!(error < 1e-4, "{isa:?}, {width}, {row}, {i}: {error}");
                }
            }
        }
    }
}
