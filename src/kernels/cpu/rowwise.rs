//! Row-wise kernels: embedding lookup, gated activations, scaling.

mod rotation;

pub use self::rotation::{Rotation, rotate_and_store, rotate_head, rotate_queries, rotations};
use super::batch::CpuBatch;
use super::element::load_up_to;
use super::gates::{GatedGelu, silu};
use super::rows::{ELEMENT_COST, for_rows};
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::stack::Stack;
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;
use crate::Gate;

/// Copies the `table` row of each token in the batch, times a factor if given.
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

/// Copies the batch's prompt embeddings over the rows of the tokens that they replace.
pub fn place_prompt_embeddings(batch: &CpuBatch, out: &mut Tensor) {
    let width = out.width();
    for run in batch.prompt_embeddings() {
        let rows = out.values_mut()[run.first_token * width..].chunks_exact_mut(width);
        for (row, vector) in rows.zip(run.columns(0, width)) {
            row.copy_from_slice(vector);
        }
    }
}

/// Adds vector `set` of those that follow the one in the embedding's place to the rows of the tokens. On one thread: a
/// step has few images.
pub fn add_image_vectors(batch: &CpuBatch, set: usize, x: &mut Tensor) {
    let width = x.width();
    for run in batch.prompt_embeddings() {
        let rows = x.values_mut()[run.first_token * width..].chunks_exact_mut(width);
        for (row, vector) in rows.zip(run.columns((1 + set) * width, width)) {
            let values = row.iter_mut().zip(vector);
            values.for_each(|(value, added)| *value += added);
        }
    }
}

/// Computes gated activations; rows of `both` hold gate in the first half, up in the second.
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

/// Computes gated activations from gates and part number `part` of the rows of `inputs`, as wide as the gates.
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
            let limit_and_slope = (limit, slope);
            dispatch(
                isa,
                GatedClamped {
                    gates,
                    ups,
                    limit_and_slope,
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
            // SAFETY: `load_up_to` stays within its slice, `padded` holds sixteen values; `dispatch` detected the
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

struct GatedClamped<'a> {
    gates: &'a [f32],
    ups: &'a [f32],
    limit_and_slope: (f32, f32),
    out: &'a mut [f32],
}

impl Kernel for GatedClamped<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let (limit, slope) = self.limit_and_slope;
        let vectors = self.gates.chunks(LANES).zip(self.ups.chunks(LANES));
        for ((gate, up), out) in vectors.zip(self.out.chunks_mut(LANES)) {
            // SAFETY: `load_up_to` stays within its slice, `padded` holds sixteen values; `dispatch` detected the
            // instruction set.
            unsafe {
                // With the bound as the first operand, NaN stays NaN.
                let (min, max) = (S::splat(-limit), S::splat(limit));
                let gate = S::min(max, load_up_to::<S>(gate));
                let up = S::max(min, S::min(max, load_up_to::<S>(up)));
                let e = S::exp(S::mul(gate, S::splat(-slope)));
                let swish = S::div(gate, S::add(S::splat(1.0), e));
                let gated = S::mul(swish, S::add(up, S::splat(1.0)));
                let mut padded = [0f32; LANES];
                S::store(padded.as_mut_ptr(), gated);
                out.copy_from_slice(&padded[..out.len()]);
            }
        }
    }
}

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

/// Adds `x * factor` to `to`; the product is rounded before the addition.
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
