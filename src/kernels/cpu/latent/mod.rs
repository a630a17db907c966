//! Latent attention (MLA) on the CPU: projects queries, stores latents, computes values from means of latents.

pub(super) mod head_rows;
mod heads;

use half::bf16;

use self::head_rows::HeadColumns;
pub use self::heads::HeadMatrices;
use super::element::{Storage, with_elements};
use super::kept::Kept;
use super::matmul::Write;
use super::norms::norm_in_place;
use super::planes::Planes;
use super::row_source::Activations;
use super::rows::for_rows;
use super::rowwise::rotate_head;
use super::simd::{Isa, Kernel, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;
use super::{CpuBackend, Operand};
use crate::latent::{LatentShape, LatentWeights};

const ELEMENT_COST: usize = 64;

/// Stores the latents of a layer and returns the absorbed queries, for attention over latents.
pub fn project(
    backend: &mut CpuBackend,
    x: &Operand,
    (weights, shape): (&LatentWeights<CpuBackend>, &LatentShape),
    rotations: &Tensor,
    layer: usize,
    slots: &[u32],
) -> Tensor {
    let width = weights.down.weight.outputs;
    let mut down = backend.scratch.tensor(x.rows(), width);
    backend.product(x, &weights.down, &mut down, Write::Store);
    let threads = (&mut backend.pool, backend.isa);
    let store = (backend.kv.layer_mut(layer), slots);
    let norm = (weights.norm.as_slice(), weights.eps);
    store_latents(threads, &mut down, (shape, norm), rotations, store);
    let low_rank = weights.queries.as_ref().map(|queries| {
        let rank = width - shape.rank - shape.rotary_dim;
        let norm = Some((queries.norm.as_slice(), weights.eps));
        let rows = Activations::columns(down.values(), width, 0, rank);
        let normed = backend.pack(Activations { norm, ..rows }, &queries.up.weight);
        let mut up = backend.scratch.tensor(x.rows(), shape.query_width());
        backend.product(&normed, &queries.up, &mut up, Write::Store);
        up
    });
    absorb(
        backend,
        low_rank.as_ref().unwrap_or(&down),
        (weights, shape),
        rotations,
    )
}

/// # Shapes
/// `latents: [n_tokens, n_heads * rank]`; result `[n_tokens, n_heads * value_dim]`.
pub fn values(
    backend: &mut CpuBackend,
    latents: &Tensor,
    matrices: &HeadMatrices,
    shape: &LatentShape,
) -> Tensor {
    let mut out = backend.scratch.tensor(latents.rows(), shape.value_width());
    let from = HeadColumns {
        x: latents,
        first: 0,
        stride: shape.rank,
    };
    let threads = (&mut backend.pool, backend.isa);
    matrices.multiply(threads, &backend.scratch, from, &mut out);
    out
}

/// Multiplies the queries, the first columns of `projected`, with the key matrices, and rotates their rotary parts.
fn absorb(
    backend: &mut CpuBackend,
    projected: &Tensor,
    (weights, shape): (&LatentWeights<CpuBackend>, &LatentShape),
    rotations: &Tensor,
) -> Tensor {
    let rows = projected.rows();
    let key_dim = shape.rank + shape.rotary_dim;
    let mut out = backend.scratch.tensor(rows, shape.n_heads * key_dim);
    let from = HeadColumns {
        x: projected,
        first: 0,
        stride: shape.query_dim(),
    };
    let threads = (&mut backend.pool, backend.isa);
    weights
        .keys
        .multiply(threads, &backend.scratch, from, &mut out);
    let width = out.width();
    let shared = Shared::new(out.values_mut());
    let cost = shape.n_heads * shape.rotary_dim * ELEMENT_COST;
    let isa = backend.isa;
    for_rows(&mut backend.pool, rows, cost, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        let queries = projected.row(row).chunks_exact(shape.query_dim());
        for (out, query) in out.chunks_exact_mut(key_dim).zip(queries) {
            let head = &mut out[shape.rank..];
            head.copy_from_slice(&query[shape.plain_dim..]);
            let cos_sin = rotations.row(row);
            dispatch(isa, RotateHead { head, cos_sin });
        }
    });
    out
}

struct RotateHead<'a> {
    head: &'a mut [f32],
    cos_sin: &'a [f32],
}

impl Kernel for RotateHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        rotate_head::<S>(self.head, None, self.cos_sin);
    }
}

/// Normalises the latents and rotates the shared part of the keys, in place, and stores both in their tokens' slots.
///
/// # Shapes
/// `down`: rows that end with a latent and a rotated part; no two tokens have the same slot.
fn store_latents(
    (pool, isa): (&mut ThreadPool, Isa),
    down: &mut Tensor,
    (shape, norm): (&LatentShape, (&[f32], f32)),
    rotations: &Tensor,
    (kv, slots): (&mut Storage, &[u32]),
) {
    let key_dim = shape.rank + shape.rotary_dim;
    let (rows, width) = (down.rows(), down.width());
    let down = Shared::new(down.values_mut());
    with_elements!(kv, kv, scales => {
        let planes = Planes::over(&shape.heads(), kv);
        let (kv, scales) = (Shared::new(kv), Shared::new(scales));
        for_rows(pool, rows, key_dim * ELEMENT_COST, |row| {
            let slot = slots[row] as usize;
            let scales_at = planes.scales_of_key(0, slot);
            // SAFETY: no two tokens of a step have the same slot, so each row and each slot is written by one item.
            let (key, out, scales) = unsafe {
                (
                    down.part((row + 1) * width - key_dim, key_dim),
                    kv.part(planes.slot(slot), key_dim),
                    scales.part(scales_at.start, scales_at.len()),
                )
            };
            let cos_sin = rotations.row(row);
            dispatch(isa, StoreRow { key, rank: shape.rank, norm, cos_sin, out, scales });
        });
    });
}

struct StoreRow<'a, E> {
    /// The latent, then the rotated part.
    key: &'a mut [f32],
    rank: usize,
    norm: (&'a [f32], f32),
    cos_sin: &'a [f32],
    out: &'a mut [E],
    scales: &'a mut [bf16],
}

impl<E: Kept> Kernel for StoreRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let (latent, rotated) = self.key.split_at_mut(self.rank);
        norm_in_place::<S>(latent, self.norm.0, self.norm.1);
        rotate_head::<S>(rotated, None, self.cos_sin);
        // SAFETY: `dispatch` detected the instruction set.
        unsafe { E::keep::<S>(self.key, self.out, self.scales) };
    }
}
