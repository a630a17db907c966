//! Activations, with and without a gate.

use crate::cpu::element::{load_up_to, store_up_to};
use crate::cpu::gates::{gelu, silu};
use crate::cpu::rows::{ELEMENT_COST, for_rows};
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::vision::{Activation, Columns};

pub fn activate(pool: &mut ThreadPool, isa: Isa, x: &mut Tensor, activation: Activation) {
    let (rows, width) = (x.rows(), x.width());
    let shared = Shared::new(x.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let values = unsafe { shared.part(row * width, width) };
        dispatch(isa, ActivateRow { values, activation });
    });
}

/// `activation(gates) * ups`, in columns as wide as `out`.
pub fn gate(
    pool: &mut ThreadPool,
    isa: Isa,
    (gates, ups): (Columns<'_, Tensor>, Columns<'_, Tensor>),
    activation: Activation,
    mut out: Tensor,
) -> Tensor {
    let (rows, width) = (out.rows(), out.width());
    let shared = Shared::new(out.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let values = unsafe { shared.part(row * width, width) };
        values.copy_from_slice(&gates.rows.row(row)[gates.first..gates.first + width]);
        let ups = &ups.rows.row(row)[ups.first..ups.first + width];
        dispatch(
            isa,
            ActivateRow {
                values: &mut *values,
                activation,
            },
        );
        values
            .iter_mut()
            .zip(ups)
            .for_each(|(value, up)| *value *= up);
    });
    out
}

struct ActivateRow<'a> {
    values: &'a mut [f32],
    activation: Activation,
}

impl Kernel for ActivateRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        for values in self.values.chunks_mut(LANES) {
            // SAFETY: `load_up_to` and `store_up_to` stay within the slice; `dispatch` detected the instruction set.
            unsafe {
                let x = load_up_to::<S>(values);
                let activated = match self.activation {
                    Activation::Silu => silu::<S>(x),
                    Activation::GeluTanh => gelu::<S>(x),
                    Activation::GeluErf => gelu_erf::<S>(x),
                };
                store_up_to::<S>(activated, values);
            }
        }
    }
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn gelu_erf<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let erf = erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
        S::mul(S::mul(x, S::splat(0.5)), S::add(S::splat(1.0), erf))
    }
}

/// erf(x) within 4e-7, from -1 to 1.
///
/// # Safety
/// The instruction set of `S` was detected.
///
/// # Source
/// The quotient of polynomials of degree 13 and 8 of Eigen's `erf`, which is 1 except for rounding at 4.
#[inline(always)]
unsafe fn erf<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: only lane arithmetic; the caller detected the instruction set.
    unsafe {
        let x = S::min(S::splat(4.0), S::max(S::splat(-4.0), x));
        let square = S::mul(x, x);
        let mut p = S::splat(-2.726_142_4e-10);
        for c in [
            2.770_681_5e-8,
            -2.101_024e-6,
            -5.692_506_2e-5,
            -7.349_906_4e-4,
            -2.9546e-3,
            -1.609_603_3e-2,
        ] {
            p = S::mul_add(p, square, S::splat(c));
        }
        let mut q = S::splat(-1.456_607_15e-5);
        for c in [
            -2.133_740_5e-4,
            -1.682_827e-3,
            -7.373_329_3e-3,
            -1.426_473_9e-2,
        ] {
            q = S::mul_add(q, square, S::splat(c));
        }
        let erf = S::div(S::mul(x, p), q);
        S::min(S::splat(1.0), S::max(S::splat(-1.0), erf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tensor::Scratch;

    /// Not a whole number of vectors.
    const WIDTH: usize = 1001;

    /// erf by its Taylor series, which converges within the range of the test.
    fn erf_by_series(x: f64) -> f64 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    fn expected(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::GeluErf => 0.5 * x * (1.0 + erf_by_series(x / 2f64.sqrt())),
        }
    }

    #[test]
    fn activations_match_their_formulas_on_every_instruction_set() {
        let scratch = Scratch::default();
        let mut pool = ThreadPool::new(1).expect("threads start");
        let input = |i: usize| (i as f32 - 500.0) / 125.0;
        for isa in Isa::available() {
            for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
                let mut x = scratch.tensor(1, WIDTH);
                for (i, x) in x.row_mut(0).iter_mut().enumerate() {
                    *x = input(i);
                }
                activate(&mut pool, isa, &mut x, activation);
                for (i, got) in x.row(0).iter().enumerate() {
                    let expected = expected(activation, f64::from(input(i)));
                    let error = (f64::from(*got) - expected).abs();
                    let limit = 1e-6 * (1.0 + expected.abs());
                    assert!(error < limit, "{isa:?}, {activation:?}, {i}: {error}");
                }
            }
        }
    }

    #[test]
    fn gates_multiply_columns_of_two_tensors() {
        let scratch = Scratch::default();
        let mut pool = ThreadPool::new(1).expect("threads start");
        let mut both = scratch.tensor(2, 7);
        for (i, value) in both.values_mut().iter_mut().enumerate() {
            *value = i as f32 / 4.0 - 1.0;
        }
        let columns = |first| Columns { rows: &both, first };
        let out = scratch.tensor(2, 3);
        let isa = Isa::detect();
        let gated = (columns(1), columns(4));
        let out = gate(&mut pool, isa, gated, Activation::GeluErf, out);
        for (row, i) in (0..2).flat_map(|row| (0..3).map(move |i| (row, i))) {
            let (gate, up) = (both.row(row)[1 + i], both.row(row)[4 + i]);
            let expected = expected(Activation::GeluErf, f64::from(gate)) * f64::from(up);
            let error = (f64::from(out.row(row)[i]) - expected).abs();
            assert!(error < 1e-6, "{row}, {i}: {error}");
        }
    }
}
