//! Steps before and after the delta rule: L2 norm of q and k, decays and betas, gated norm.

use crate::cpu::CpuBackend;
use crate::cpu::element::{load_up_to, store_up_to};
use crate::cpu::gates::silu;
use crate::cpu::norms::norm_scale;
use crate::cpu::rows::for_rows;
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::recurrent::{DeltaNetShape, DeltaNetWeights};

const ELEMENT_COST: usize = 64;
const RATES_COST: usize = 512;
/// Added to the sum of squares.
const LENGTH_EPS: f32 = 1e-6;
/// Softplus of larger values is the value itself.
const SOFTPLUS_LINEAR: f32 = 20.0;
/// A decay with a lower logarithm becomes zero: its products would be subnormal.
const LEAST_LOG_DECAY: f32 = -80.0;

/// L2-normalises the heads of q and k in `mixed`, and computes `rates: [n_tokens, 2 * value_heads]`: the decays, then
/// the betas of the value heads.
pub fn prepare(
    (pool, isa): (&mut ThreadPool, Isa),
    shape: &DeltaNetShape,
    weights: &DeltaNetWeights<CpuBackend>,
    projected: &Tensor,
    mixed: &mut Tensor,
    mut rates: Tensor,
) -> Tensor {
    let (rows, channels, heads) = (mixed.rows(), shape.channels(), shape.value_heads);
    let cost = 2 * shape.keys() * ELEMENT_COST + heads * RATES_COST;
    let mixed = Shared::new(mixed.values_mut());
    let out = Shared::new(rates.values_mut());
    for_rows(pool, rows, cost, |row| {
        // SAFETY: each row is written by one item.
        let (qk, rates) = unsafe {
            (
                mixed.part(row * channels, 2 * shape.keys()),
                out.part(row * 2 * heads, 2 * heads),
            )
        };
        let (q, k) = qk.split_at_mut(shape.keys());
        let query_scale = (shape.key_dim as f32).sqrt().recip();
        for (part, scale) in [(q, query_scale), (k, 1.0)] {
            for head in part.chunks_exact_mut(shape.key_dim) {
                dispatch(isa, L2Norm { head, scale });
            }
        }
        let after = &projected.row(row)[channels + shape.values()..];
        let (b, a) = after.split_at(heads);
        let (decays, betas) = rates.split_at_mut(heads);
        for head in 0..heads {
            let log = weights.decay[head] * softplus(a[head] + weights.dt_bias[head]);
            decays[head] = if log < LEAST_LOG_DECAY {
                0.0
            } else {
                log.exp()
            };
            betas[head] = 1.0 / (1.0 + (-b[head]).exp());
        }
    });
    rates
}

fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_LINEAR {
        x
    } else {
        x.exp().ln_1p()
    }
}

struct L2Norm<'a> {
    head: &'a mut [f32],
    scale: f32,
}

impl Kernel for L2Norm<'_> {
    type Output = ();

    /// `x / sqrt(sum(x^2) + eps) * scale`: with the sum of squares, not the mean.
    #[inline(always)]
    fn run<S: Lanes>(self) {
        let n = self.head.len() as f32;
        let scale = norm_scale::<S>(self.head, LENGTH_EPS / n) / n.sqrt() * self.scale;
        for part in self.head.chunks_mut(LANES) {
            // SAFETY: both stay within `part`; `dispatch` detected the instruction set.
            unsafe {
                let scaled = S::mul(load_up_to::<S>(part), S::splat(scale));
                store_up_to::<S>(scaled, part);
            }
        }
    }
}

pub fn finish(
    (pool, isa): (&mut ThreadPool, Isa),
    shape: &DeltaNetShape,
    weights: &DeltaNetWeights<CpuBackend>,
    projected: &Tensor,
    out: &mut Tensor,
) {
    let (rows, width) = (out.rows(), out.width());
    let out = Shared::new(out.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let heads = unsafe { out.part(row * width, width) };
        let gates = &projected.row(row)[shape.channels()..][..width];
        let dim = shape.value_dim;
        for (head, gates) in heads.chunks_exact_mut(dim).zip(gates.chunks_exact(dim)) {
            dispatch(
                isa,
                GatedNorm {
                    head,
                    gates,
                    weight: &weights.norm,
                    eps: weights.eps,
                },
            );
        }
    });
}

struct GatedNorm<'a> {
    head: &'a mut [f32],
    gates: &'a [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for GatedNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let scale = norm_scale::<S>(self.head, self.eps);
        let parts = self.head.chunks_mut(LANES).zip(self.gates.chunks(LANES));
        for ((head, gates), weight) in parts.zip(self.weight.chunks(LANES)) {
            // SAFETY: all stay within their slices; `dispatch` detected the instruction set.
            unsafe {
                let normed = S::mul(load_up_to::<S>(head), S::splat(scale));
                let weighted = S::mul(normed, load_up_to::<S>(weight));
                let gated = S::mul(weighted, silu::<S>(load_up_to::<S>(gates)));
                store_up_to::<S>(gated, head);
            }
        }
    }
}
