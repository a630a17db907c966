//! Benchmarks of row-wise kernels, all memory-bound.

use super::Timing;
use super::lab::Lab;
use crate::cuda::driver::{DevicePtr, DriverError};
use crate::cuda::launch::{Embed, RmsNorm, RopeStore, SiluMul};
use crate::cuda::params::{ElementType, RopeStoreParams};

const ELEMENT: ElementType = ElementType::Bf16;
const ROWS: [u32; 4] = [1, 32, 128, 4096];
const EPS: f32 = 1e-5;

#[derive(Clone, Copy)]
struct Sizes {
    hidden: u32,
    intermediate: u32,
    vocab: u32,
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
}

const LLAMA: Sizes = Sizes {
    hidden: 4096,
    intermediate: 14_336,
    vocab: 128_256,
    n_heads: 32,
    n_kv_heads: 8,
    head_dim: 128,
};
const TINY: Sizes = Sizes {
    hidden: 64,
    intermediate: 96,
    vocab: 200,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 64,
};

pub(super) fn measure(lab: &mut Lab, report: &mut dyn FnMut(Timing)) -> Result<(), DriverError> {
    let sizes = lab.sized(LLAMA, TINY);
    for rows in lab.sized(&ROWS[..], &[1, 5]) {
        report(embed(lab, sizes, *rows)?);
        report(rms_norm(lab, sizes, *rows)?);
        report(rope_store(lab, sizes, *rows)?);
        report(silu_mul(lab, sizes, *rows)?);
    }
    Ok(())
}

fn embed(lab: &Lab, sizes: Sizes, rows: u32) -> Result<Timing, DriverError> {
    let kernel = Embed::load(&lab.modules, ELEMENT)?;
    let Sizes { hidden, vocab, .. } = sizes;
    let table = lab.elements(ELEMENT, vocab as usize * hidden as usize)?;
    let out = lab.elements(ElementType::F32, rows as usize * hidden as usize)?;
    let tokens: Vec<u32> = (0..rows)
        .map(|row| row.wrapping_mul(7919) % vocab)
        .collect();
    let tokens = lab.upload(&tokens)?;
    let seconds = lab.time(|stream, nth| {
        let (out, table) = (out.at(nth), table.at(nth));
        // SAFETY: operands have the shapes given and live until the time is read.
        unsafe { kernel.embed(stream, out, table, tokens.ptr(), [rows, hidden]) }
    })?;
    Ok(Timing {
        name: format!("embed, {rows} rows of {hidden}"),
        seconds,
        bytes: u64::from(rows) * u64::from(hidden) * (2 + 4),
        flop: 0,
    })
}

fn rms_norm(lab: &Lab, sizes: Sizes, rows: u32) -> Result<Timing, DriverError> {
    let kernel = RmsNorm::load(&lab.modules, ELEMENT)?;
    let hidden = sizes.hidden;
    let len = rows as usize * hidden as usize;
    let (x, out) = (
        lab.elements(ElementType::F32, len)?,
        lab.elements(ELEMENT, len)?,
    );
    let weight = lab.elements(ElementType::F32, hidden as usize)?;
    let seconds = lab.time(|stream, nth| {
        let (out, x, weight) = (out.at(nth), x.at(nth), weight.at(nth));
        // SAFETY: as in `embed`.
        unsafe { kernel.launch(stream, out, x, DevicePtr::NULL, weight, [rows, hidden], EPS) }
    })?;
    Ok(Timing {
        name: format!("rms_norm, {rows} rows of {hidden}"),
        seconds,
        bytes: u64::from(rows) * u64::from(hidden) * (4 + 2),
        flop: 0,
    })
}

fn rope_store(lab: &Lab, sizes: Sizes, rows: u32) -> Result<Timing, DriverError> {
    let kernel = RopeStore::load(&lab.modules, ELEMENT)?;
    let Sizes {
        n_heads,
        n_kv_heads,
        head_dim,
        ..
    } = sizes;
    let (q, kv) = (n_heads * head_dim, n_kv_heads * head_dim);
    let elements = |rows: u32, width: u32| lab.elements(ELEMENT, rows as usize * width as usize);
    let (qkv, out) = (elements(rows, q + 2 * kv)?, elements(rows, q)?);
    let (keys, values) = (elements(rows + 1, kv)?, elements(rows + 1, kv)?);
    let rotations = lab.elements(ElementType::F32, rows as usize * head_dim as usize)?;
    let slots = lab.upload(&(1..=rows).collect::<Vec<u32>>())?;
    let seconds = lab.time(|stream, nth| {
        let params = RopeStoreParams {
            q: out.at(nth),
            k_pool: keys.at(nth),
            v_pool: values.at(nth),
            qkv: qkv.at(nth),
            q_norm: DevicePtr::NULL,
            k_norm: DevicePtr::NULL,
            rotations: rotations.at(nth),
            slots: slots.ptr(),
            n_heads,
            n_kv_heads,
            head_dim,
            eps: EPS,
        };
        // SAFETY: as in `embed`.
        unsafe { kernel.launch(stream, &params, rows) }
    })?;
    Ok(Timing {
        name: format!("rope_store, {rows} rows of {}", q + 2 * kv),
        seconds,
        bytes: u64::from(rows) * (2 * 2 * u64::from(q + 2 * kv) + 4 * u64::from(head_dim)),
        flop: 0,
    })
}

fn silu_mul(lab: &Lab, sizes: Sizes, rows: u32) -> Result<Timing, DriverError> {
    let kernel = SiluMul::load(&lab.modules, ELEMENT)?;
    let width = sizes.intermediate;
    let len = rows as usize * width as usize;
    let (both, out) = (lab.elements(ELEMENT, 2 * len)?, lab.elements(ELEMENT, len)?);
    let seconds = lab.time(|stream, nth| {
        // SAFETY: as in `embed`.
        unsafe { kernel.launch(stream, out.at(nth), both.at(nth), [rows, width]) }
    })?;
    Ok(Timing {
        name: format!("silu_mul, {rows} rows of {width}"),
        seconds,
        bytes: 3 * 2 * u64::from(rows) * u64::from(width),
        flop: 0,
    })
}
