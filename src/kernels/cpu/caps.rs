//! Softcap of scores and logits: `cap * tanh(x / cap)`.

use super::element::{load_up_to, store_up_to};
use super::rows::for_rows;
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;

const PART: usize = 4096;
const ELEMENT_COST: usize = 64;

/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn soft_cap<S: Lanes>(x: S::V, cap: f32) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let part = S::div(x, S::splat(cap));
        S::mul(S::tanh(part), S::splat(cap))
    }
}

pub fn cap_all(pool: &mut ThreadPool, isa: Isa, x: &mut Tensor, cap: f32) {
    let len = x.rows() * x.width();
    let shared = Shared::new(x.values_mut());
    for_rows(pool, len.div_ceil(PART), PART * ELEMENT_COST, |part| {
        let first = part * PART;
        // SAFETY: each part is written by one item.
        let values = unsafe { shared.part(first, PART.min(len - first)) };
        dispatch(isa, Cap { values, cap });
    });
}

struct Cap<'a> {
    values: &'a mut [f32],
    cap: f32,
}

impl Kernel for Cap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        for values in self.values.chunks_mut(LANES) {
            // SAFETY: `load_up_to` and `store_up_to` stay within the slice; `dispatch` detected the instruction set.
            unsafe { store_up_to::<S>(soft_cap::<S>(load_up_to::<S>(values), self.cap), values) };
        }
    }
}
