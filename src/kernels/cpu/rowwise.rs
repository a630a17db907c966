//! Kernels that treat each token's row by itself: embedding, norms, rotation, KV store, activation.

mod rotation;

pub use self::rotation::{Rotation, rotate_and_store, rotate_queries, rotations, turn_head};
use super::batch::CpuBatch;
use super::element::{Element, load_up_to};
use super::gates::GatedGelu;
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::stack::Stack;
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;
use crate::kernels::Gate;

/// Rows in an item: a barrier costs about as much as a few rows.
const ITEM_ROWS: usize = 4;

/// Multiply-adds that an element costs about: most of it is waiting for what another thread or none has near.
const ELEMENT_COST: usize = 64;

/// Calls `row` for each row, which costs about `cost` multiply-adds.
pub fn for_rows(pool: &mut ThreadPool, rows: usize, cost: usize, row: impl Fn(usize) + Sync) {
    pool.for_each_in_runs(rows.div_ceil(ITEM_ROWS), rows * cost, &|item| {
        (item * ITEM_ROWS..rows.min((item + 1) * ITEM_ROWS)).for_each(&row);
    });
}

/// Copies the rows of `table` that the batch's tokens name, times a factor.
pub fn look_up(
    pool: &mut ThreadPool,
    table: &Stack,
    factor: Option<f32>,
    batch: &CpuBatch,
    mut out: Tensor,
) -> Tensor {
    let (width, tokens) = (table.inputs, &batch.tokens);
    let shared = Shared::new(out.values_mut());
    for_rows(pool, tokens.len(), width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        table.read_row(tokens[row] as usize, out);
        if let Some(factor) = factor {
            out.iter_mut().for_each(|value| *value *= factor);
        }
    });
    out
}

/// Copies the batch's vectors into the rows of the tokens in whose place they stand.
pub fn place_vectors(batch: &CpuBatch, out: &mut Tensor) {
    let width = out.width();
    for run in batch.vectors() {
        let (first, values) = (run.first_token * width, run.values());
        out.values_mut()[first..first + values.len()].copy_from_slice(values);
    }
}

/// The products of gates and what they are for: rows hold the gates in their first half, the rest in the second.
pub fn gated(
    pool: &mut ThreadPool,
    isa: Isa,
    gate: Gate,
    both: &Tensor,
    mut out: Tensor,
) -> Tensor {
    let width = out.width();
    let shared = Shared::new(out.values_mut());
    for_rows(pool, both.rows(), width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        let (gates, ups) = both.row(row).split_at(width);
        gate_row(isa, gate, (gates, ups), out);
    });
    out
}

/// The products of gates and one of the parts of the same rows of `inputs`, each as wide as those of the gates.
pub fn gated_part(
    pool: &mut ThreadPool,
    isa: Isa,
    (gates, gate): (&Tensor, Gate),
    (inputs, part): (&Tensor, usize),
    mut out: Tensor,
) -> Tensor {
    let width = out.width();
    let shared = Shared::new(out.values_mut());
    for_rows(pool, gates.rows(), width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        let ups = &inputs.row(row)[part * width..(part + 1) * width];
        gate_row(isa, gate, (gates.row(row), ups), out);
    });
    out
}

fn gate_row(isa: Isa, gate: Gate, (gates, ups): (&[f32], &[f32]), out: &mut [f32]) {
    match gate {
        Gate::Silu => dispatch(isa, GatedSilu { gates, ups, out }),
        Gate::GeluTanh => dispatch(isa, GatedGelu { gates, ups, out }),
        Gate::Clamped { limit, slope } => {
            let bounds = (limit, slope);
            dispatch(
                isa,
                GatedClamped {
                    gates,
                    ups,
                    bounds,
                    out,
                },
            );
        }
    }
}

struct GatedSilu<'a> {
    gates: &'a [f32],
    ups: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for GatedSilu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let vectors = self.gates.chunks(LANES).zip(self.ups.chunks(LANES));
        for ((gate, up), out) in vectors.zip(self.out.chunks_mut(LANES)) {
            // SAFETY: `load_up_to` reads what is there, `padded` holds sixteen values; `dispatch` detected the
            // instruction set.
            unsafe {
                let gated = S::mul(silu::<S>(load_up_to::<S>(gate)), load_up_to::<S>(up));
                let mut padded = [0f32; LANES];
                S::store(padded.as_mut_ptr(), gated);
                out.copy_from_slice(&padded[..out.len()]);
            }
        }
    }
}

/// Writes as many lanes as `out` has elements, at most sixteen.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn store_up_to<S: Lanes>(v: S::V, out: &mut [f32]) {
    // SAFETY: both hold sixteen values.
    unsafe {
        if out.len() == LANES {
            return S::store(out.as_mut_ptr(), v);
        }
        let mut padded = [0f32; LANES];
        S::store(padded.as_mut_ptr(), v);
        out.copy_from_slice(&padded[..out.len()]);
    }
}

struct GatedClamped<'a> {
    gates: &'a [f32],
    ups: &'a [f32],
    /// Limit and slope.
    bounds: (f32, f32),
    out: &'a mut [f32],
}

impl Kernel for GatedClamped<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let (limit, slope) = self.bounds;
        let vectors = self.gates.chunks(LANES).zip(self.ups.chunks(LANES));
        for ((gate, up), out) in vectors.zip(self.out.chunks_mut(LANES)) {
            // SAFETY: `load_up_to` reads what is there, `padded` holds sixteen values; `dispatch` detected the
            // instruction set.
            unsafe {
                // Bounds first: then a NaN stays one.
                let (least, most) = (S::splat(-limit), S::splat(limit));
                let gate = S::min(most, load_up_to::<S>(gate));
                let up = S::max(least, S::min(most, load_up_to::<S>(up)));
                let e = S::exp(S::mul(gate, S::splat(-slope)));
                let open = S::div(gate, S::add(S::splat(1.0), e));
                let gated = S::mul(open, S::add(up, S::splat(1.0)));
                let mut padded = [0f32; LANES];
                S::store(padded.as_mut_ptr(), gated);
                out.copy_from_slice(&padded[..out.len()]);
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
    // SAFETY: the caller's promise.
    unsafe {
        let e = S::exp(S::sub(S::splat(0.0), x));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// Multiplies each row with its factor.
pub fn scale(pool: &mut ThreadPool, x: &mut Tensor, factor: impl Fn(usize) -> f32 + Sync) {
    let (rows, width) = (x.rows(), x.width());
    let shared = Shared::new(x.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        let factor = factor(row);
        // SAFETY: each row is written by one item.
        let values = unsafe { shared.part(row * width, width) };
        values.iter_mut().for_each(|value| *value *= factor);
    });
}

/// Adds `x` times a factor, rounded before it is added.
pub fn add_scaled(pool: &mut ThreadPool, to: &mut Tensor, x: &Tensor, factor: f32) {
    let width = x.width();
    let shared = Shared::new(to.values_mut());
    for_rows(pool, x.rows(), width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let to = unsafe { shared.part(row * width, width) };
        for (to, value) in to.iter_mut().zip(x.row(row)) {
            *to += value * factor;
        }
    });
}

/// Norms each row with a weight and what is added to the mean square.
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
        // SAFETY: both hold as many values; `dispatch` detected the instruction set.
        unsafe { scale_row::<S>(x.as_ptr(), (weight, scale), out.as_mut_ptr(), out.len()) };
    }
}

/// `x / sqrt(mean(x^2) + eps) * weight`.
#[inline(always)]
pub fn norm_in_place<S: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = norm_scale::<S>(x, eps);
    let (row, len) = (x.as_mut_ptr(), x.len());
    // SAFETY: the row holds as many values; `dispatch` detected the instruction set.
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
    // SAFETY: the caller's promise.
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

/// Narrows values into as many elements.
#[inline(always)]
pub fn narrow_into<E: Element, S: Lanes>(values: &[f32], out: &mut [E]) {
    let whole = values.len() / LANES * LANES;
    for (out, values) in out.chunks_exact_mut(LANES).zip(values.chunks_exact(LANES)) {
        // SAFETY: both hold sixteen values; `dispatch` detected the instruction set.
        unsafe { E::store::<S>(out.as_mut_ptr(), S::load(values.as_ptr())) };
    }
    for (out, value) in out[whole..].iter_mut().zip(&values[whole..]) {
        *out = E::narrow(*value);
    }
}
