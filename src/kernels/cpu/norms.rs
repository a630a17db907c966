//! RMSNorm of rows.

use super::element::Element;
use super::rows::{ELEMENT_COST, for_rows};
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;

pub fn norm(
    pool: &mut ThreadPool,
    isa: Isa,
    x: &Tensor,
    (weight, eps): (&[f32], f32),
    mut out: Tensor,
) -> Tensor {
    let width = x.width();
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
                weight,
                eps,
            },
        );
    });
    out
}

/// RMSNorm of `n_heads` adjacent heads of each row, as wide as the weight, from column `first` on.
///
/// # Panics
/// If the rows are narrower.
pub fn norm_heads(
    pool: &mut ThreadPool,
    isa: Isa,
    x: &mut Tensor,
    (first, n_heads): (usize, usize),
    (weight, eps): (&[f32], f32),
) {
    let (rows, stride, width) = (x.rows(), x.width(), n_heads * weight.len());
    assert!(
        first + width <= stride,
        "{width} columns from {first} on exceed the width {stride}"
    );
    let shared = Shared::new(x.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let heads = unsafe { shared.part(row * stride + first, width) };
        for head in heads.chunks_exact_mut(weight.len()) {
            dispatch(isa, NormHead { head, weight, eps });
        }
    });
}

struct NormHead<'a> {
    head: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for NormHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        norm_in_place::<S>(self.head, self.weight, self.eps);
    }
}

struct NormRow<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Self {
            x,
            out,
            weight,
            eps,
        } = self;
        assert_eq!(x.len(), out.len());
        let scale = norm_scale::<S>(x, eps);
        // SAFETY: both hold `out.len()` values; `dispatch` detected the instruction set.
        unsafe { scale_row::<S>(x.as_ptr(), (weight, scale), out.as_mut_ptr(), out.len()) };
    }
}

/// `x / sqrt(mean(x^2) + eps) * weight`.
#[inline(always)]
pub fn norm_in_place<S: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = norm_scale::<S>(x, eps);
    let (row, len) = (x.as_mut_ptr(), x.len());
    // SAFETY: the row holds `len` values; `dispatch` detected the instruction set.
    unsafe { scale_row::<S>(row, (weight, scale), row, len) };
}

/// `x * scale * weight`; `out` may be `x`.
///
/// # Safety
/// `x` and `out` are valid for `len` values; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn scale_row<S: Lanes>(
    x: *const f32,
    (weight, scale): (&[f32], f32),
    out: *mut f32,
    len: usize,
) {
    let (weights, rest) = weight[..len].as_chunks::<LANES>();
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (i, weight) in weights.iter().enumerate() {
            let (x, out) = (x.wrapping_add(i * LANES), out.wrapping_add(i * LANES));
            let scaled = S::mul(S::load(x), S::splat(scale));
            S::store(out, S::mul(scaled, S::load(weight.as_ptr())));
        }
        for (i, weight) in rest.iter().enumerate() {
            let at = weights.len() * LANES + i;
            out.wrapping_add(at)
                .write(x.wrapping_add(at).read() * scale * weight);
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`; lane `i % 16` sums its squares in ascending i.
#[inline(always)]
pub fn norm_scale<S: Lanes>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: whole chunks of sixteen values, or parts of the length passed; `dispatch` detected the instruction set.
    let squares = unsafe {
        let mut acc = S::splat(0.0);
        let chunks = x.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            let v = S::load(chunk.as_ptr());
            acc = S::mul_add(v, v, acc);
        }
        let v = f32::load_part::<S>(rest.as_ptr(), rest.len());
        S::sum(S::mul_add(v, v, acc))
    };
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}
