//! Recurrent layers, whose state has a fixed size: short convolutions and gated delta nets, token by token.
//!
//! The chunked form of the delta rule is not used: its sums would depend on chunk boundaries. Each column of a head's
//! matrix is a lane that sums over keys in a fixed order; threads divide heads and columns, never sums.

mod conv;
mod delta;
mod drafts;
mod gates;
pub(super) mod pool;

use self::conv::{ConvInput, Epilogue, convolve};
use self::drafts::{Form, StepInputs, settle_displaced};
use super::batch::CpuBatch;
use super::matmul::Write;
use super::tensor::Tensor;
use super::{CpuBackend, Operand};
use crate::recurrent::{DeltaNetWeights, GatedConvWeights};

pub fn gated_conv(
    backend: &mut CpuBackend,
    x: &Operand,
    weights: &GatedConvWeights<CpuBackend>,
    layer: usize,
    batch: &CpuBatch,
) -> Tensor {
    let channels = weights.input.weight.outputs / 3;
    let mut projected = backend.scratch.tensor(x.rows(), 3 * channels);
    backend.product(x, &weights.input, &mut projected, Write::Store);
    conv::gate_inputs(&mut backend.pool, &mut projected, channels);
    let input = ConvInput {
        x: &projected,
        channels,
        taps: &weights.taps,
        n_taps: weights.n_taps,
        bias: weights.bias.as_deref(),
        epilogue: Epilogue::Times { first: channels },
    };
    let form = Form {
        channels,
        n_kept: weights.n_taps - 1,
        delta: None,
    };
    let out = backend.scratch.tensor(x.rows(), channels);
    let (pool, isa, states) = (&mut backend.pool, backend.isa, &mut backend.states);
    settle_displaced((&mut *pool, isa), (&mut *states, layer), batch);
    let store = (&mut *states, layer, form.first_kept());
    let out = convolve((&mut *pool, isa), &input, store, batch, out);
    let step = StepInputs {
        convolved: &projected,
        delta: None,
    };
    states.layer(layer).1.keep(pool, form, &step, batch);
    out
}

pub fn delta_net(
    backend: &mut CpuBackend,
    x: &Operand,
    weights: &DeltaNetWeights<CpuBackend>,
    layer: usize,
    batch: &CpuBatch,
) -> Tensor {
    let shape = weights.shape;
    let mut projected = backend.scratch.tensor(x.rows(), shape.projected());
    backend.product(x, &weights.input, &mut projected, Write::Store);
    let input = ConvInput {
        x: &projected,
        channels: shape.channels(),
        taps: &weights.taps,
        n_taps: shape.n_taps,
        bias: None,
        epilogue: Epilogue::Silu,
    };
    let mixed = backend.scratch.tensor(x.rows(), shape.channels());
    let rates = backend.scratch.tensor(x.rows(), 2 * shape.value_heads);
    let out = backend.scratch.tensor(x.rows(), shape.values());
    let form = Form {
        channels: shape.channels(),
        n_kept: shape.n_taps - 1,
        delta: Some(shape),
    };
    let (pool, isa, states) = (&mut backend.pool, backend.isa, &mut backend.states);
    settle_displaced((&mut *pool, isa), (&mut *states, layer), batch);
    let store = (&mut *states, layer, form.first_kept());
    let mut mixed = convolve((&mut *pool, isa), &input, store, batch, mixed);
    let rates = gates::prepare(
        (&mut *pool, isa),
        &shape,
        weights,
        &projected,
        &mut mixed,
        rates,
    );
    let mut out = delta::run(
        (&mut *pool, isa),
        &shape,
        (&mixed, &rates),
        (&mut *states, layer),
        batch,
        out,
    );
    let step = StepInputs {
        convolved: &projected,
        delta: Some((&mixed, &rates)),
    };
    states.layer(layer).1.keep(pool, form, &step, batch);
    gates::finish((pool, isa), &shape, weights, &projected, &mut out);
    out
}
