//! Gates: what they let through is multiplied with their sigmoid.

use super::element::load_up_to;
use super::rowwise::{for_rows, store_up_to};
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;

/// Multiply-adds that an element costs about: most of it is waiting for memory.
const ELEMENT_COST: usize = 64;

/// Multiplies the rows of `x` with `1 / (1 + e^-gate)`, element by element, or each row with that of its only gate.
///
/// # Panics
/// If the rows of `gate` are of another width than those of `x`, and not of one element.
pub fn multiply(pool: &mut ThreadPool, isa: Isa, x: &mut Tensor, gate: &Tensor) {
    let (rows, width) = (x.rows(), x.width());
    assert!(
        [1, width].contains(&gate.width()),
        "gates for each element, or one"
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
    /// As many, or one.
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
                let open = S::div(S::splat(1.0), S::add(S::splat(1.0), e));
                store_up_to::<S>(S::mul(load_up_to::<S>(out), open), out);
            }
        }
    }
}
