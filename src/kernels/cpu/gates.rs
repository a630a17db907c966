//! Gated activations: the up projection times SiLU or GELU of the gate, and sigmoid gates.

use super::element::{load_up_to, store_up_to};
use super::rows::for_rows;
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;

const ELEMENT_COST: usize = 64;

/// Multiplies `x` by `1 / (1 + e^-gate)`, with a gate for each element or one for each row.
///
/// # Panics
/// If `gate` has neither the width of `x` nor a width of 1.
pub fn multiply(pool: &mut ThreadPool, isa: Isa, x: &mut Tensor, gate: &Tensor) {
    let (rows, width) = (x.rows(), x.width());
    assert!(
        [1, width].contains(&gate.width()),
        "gates must be one per element or one per row"
    );
    let shared = Shared::new(x.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        let gates = gate.row(row);
        dispatch(isa, Multiply { out, gates });
    });
}

struct Multiply<'a> {
    out: &'a mut [f32],
    /// One gate for each element of `out`, or a single gate.
    gates: &'a [f32],
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        for (at, out) in self.out.chunks_mut(LANES).enumerate() {
            // SAFETY: `load_up_to` and `store_up_to` stay within their slices; `dispatch` detected the instruction set.
            unsafe {
                let gate = match self.gates {
                    [only] => S::splat(*only),
                    each => load_up_to::<S>(&each[at * LANES..][..out.len()]),
                };
                let e = S::exp(S::sub(S::splat(0.0), gate));
                let sigmoid = S::div(S::splat(1.0), S::add(S::splat(1.0), e));
                store_up_to::<S>(S::mul(load_up_to::<S>(out), sigmoid), out);
            }
        }
    }
}

pub struct GatedGelu<'a> {
    pub gates: &'a [f32],
    pub ups: &'a [f32],
    pub out: &'a mut [f32],
}

impl Kernel for GatedGelu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let vectors = self.gates.chunks(LANES).zip(self.ups.chunks(LANES));
        for ((gate, up), out) in vectors.zip(self.out.chunks_mut(LANES)) {
            // SAFETY: `load_up_to` and `store_up_to` stay within their slices; `dispatch` detected the instruction set.
            unsafe {
                let gated = S::mul(gelu::<S>(load_up_to::<S>(gate)), load_up_to::<S>(up));
                store_up_to::<S>(gated, out);
            }
        }
    }
}

/// `x / (1 + e^-x)`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn silu<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let e = S::exp(S::sub(S::splat(0.0), x));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, in the equal form `x / (1 + e^(-2 sqrt(2 / pi) ...))`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn gelu<S: Lanes>(x: S::V) -> S::V {
    const SLOPE: f32 = 1.595_769;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let cubic = S::mul_add(S::mul(x, x), S::splat(0.044_715), S::splat(1.0));
        let exponent = S::mul(S::mul(x, S::splat(-SLOPE)), cubic);
        S::div(x, S::add(S::splat(1.0), S::exp(exponent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gate;
    use crate::cpu::rowwise::gated;
    use crate::cpu::tensor::Scratch;

    #[test]
    fn gelu_matches_the_formula_on_every_instruction_set() {
        // Not a whole number of vectors.
        const WIDTH: usize = 1000;
        let scratch = Scratch::default();
        let gate = |i: usize| (i as f32 - 500.0) / 50.0;
        let mut both = scratch.tensor(1, 2 * WIDTH);
        for i in 0..WIDTH {
            both.row_mut(0)[i] = gate(i);
            both.row_mut(0)[WIDTH + i] = 1.0 + i as f32 / 250.0;
        }
        let mut outputs: Vec<(Isa, Vec<u32>)> = Vec::new();
        for isa in Isa::available() {
            let mut pool = ThreadPool::new(1).expect("threads start");
            let out = scratch.tensor(1, WIDTH);
            let out = gated(&mut pool, isa, Gate::GeluTanh, &both, out);
            for (i, got) in out.row(0).iter().enumerate() {
                let x = f64::from(gate(i));
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                let expected = 0.5 * x * (1.0 + inner.tanh()) * (1.0 + i as f64 / 250.0);
                let error = (f64::from(*got) - expected).abs();
                assert!(
                    error < 1e-6 * (1.0 + expected.abs()),
                    "{isa:?}: gelu({x}): {error}"
                );
            }
            outputs.push((isa, out.row(0).iter().map(|x| x.to_bits()).collect()));
        }
        // Instruction sets with fused multiply-add agree in all bits.
        let fused: Vec<_> = outputs
            .iter()
            .filter(|(isa, _)| *isa != Isa::Portable)
            .collect();
        for pair in fused.windows(2) {
            assert!(
                pair[0].1 == pair[1].1,
                "{:?} and {:?}",
                pair[0].0,
                pair[1].0
            );
        }
    }
}
