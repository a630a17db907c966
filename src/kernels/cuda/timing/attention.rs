//! Benchmark of paged attention on the GPU.

use std::f32::consts::LOG2_E;

use super::Timing;
use super::lab::{Copies, Lab};
use crate::cuda::driver::{DeviceBuffer, DevicePtr, DriverError};
use crate::cuda::launch::{AttendShape, Attention};
use crate::cuda::params::{AttendParams, Element, ElementType, Segment, Tile};

const ELEMENT: ElementType = ElementType::Bf16;
/// Query heads, KV heads and head size of Llama-3.1-8B and Qwen3-8B.
const LLAMA: (u32, u32, u32) = (32, 8, 128);
const TINY: (u32, u32, u32) = (4, 2, 64);
const BATCHES: [u32; 5] = [1, 8, 32, 64, 128];
const CONTEXTS: [u32; 3] = [128, 1024, 8192];
const PAGES: [u32; 2] = [1, 16];
const PROMPTS: [u32; 6] = [512, 1024, 2048, 4096, 8192, 16_384];

pub(super) fn measure(lab: &mut Lab, report: &mut dyn FnMut(Timing)) -> Result<(), DriverError> {
    let (n_heads, n_kv_heads, head_dim) = lab.sized(LLAMA, TINY);
    let shape = AttendShape {
        element: ELEMENT,
        n_heads,
        n_kv_heads,
        head_dim,
    };
    let attention = Attention::load(&lab.modules, shape, lab.multiprocessors())?;
    for page_size in PAGES {
        for context in lab.sized(&CONTEXTS[..], &[40, 300]) {
            for batch in lab.sized(&BATCHES[..], &[1, 3]) {
                let contexts = Contexts {
                    rows: *batch,
                    tokens: *context,
                    page_size,
                };
                report(decode(lab, &attention, shape, contexts)?);
            }
        }
    }
    for tokens in lab.sized(&PROMPTS[..], &[70]) {
        let contexts = Contexts {
            rows: 1,
            tokens: *tokens,
            page_size: 16,
        };
        report(prefill(lab, &attention, shape, contexts)?);
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Contexts {
    rows: u32,
    tokens: u32,
    page_size: u32,
}

struct Pool {
    keys: Copies,
    values: Copies,
    table: DeviceBuffer<u32>,
    stride: u32,
}

impl Pool {
    /// Pages are shuffled, so that no prefetcher predicts them.
    fn new(lab: &Lab, shape: AttendShape, contexts: Contexts) -> Result<Self, DriverError> {
        let stride = contexts.tokens.div_ceil(contexts.page_size);
        let n_pages = contexts.rows * stride;
        let mut pages: Vec<u32> = (1..=n_pages).collect();
        let mut random = fastrand::Rng::with_seed(u64::from(n_pages));
        random.shuffle(&mut pages);
        let slots = (n_pages as usize + 1) * contexts.page_size as usize;
        let len = slots * (shape.n_kv_heads * shape.head_dim) as usize;
        Ok(Self {
            keys: lab.elements(ELEMENT, len)?,
            values: lab.elements(ELEMENT, len)?,
            table: lab.upload(&pages)?,
            stride,
        })
    }

    fn params(
        &self,
        shape: AttendShape,
        contexts: Contexts,
        [q, out]: [DevicePtr<Element>; 2],
        nth: usize,
    ) -> AttendParams {
        AttendParams {
            out,
            q,
            k_pool: self.keys.at(nth),
            v_pool: self.values.at(nth),
            page_table: self.table.ptr(),
            segments: DevicePtr::NULL,
            tiles: DevicePtr::NULL,
            partials: DevicePtr::NULL,
            table_stride: self.stride,
            page_size: contexts.page_size,
            n_heads: shape.n_heads,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            window: 0,
            n_splits: 1,
            scale_log2: (shape.head_dim as f32).sqrt().recip() * LOG2_E,
        }
    }
}

fn decode(
    lab: &Lab,
    attention: &Attention,
    shape: AttendShape,
    contexts: Contexts,
) -> Result<Timing, DriverError> {
    let pool = Pool::new(lab, shape, contexts)?;
    let width = (shape.n_heads * shape.head_dim) as usize;
    let q = lab.elements(ELEMENT, contexts.rows as usize * width)?;
    let out = lab.elements(ELEMENT, contexts.rows as usize * width)?;
    let segments: Vec<Segment> = (0..contexts.rows)
        .map(|row| Segment {
            row,
            first_token: row,
            n_tokens: 1,
            first_position: contexts.tokens - 1,
        })
        .collect();
    let segments = lab.upload(&segments)?;
    let n_splits = attention.n_splits(contexts.rows, contexts.tokens);
    let partials = attention.partials_len(contexts.rows, n_splits).max(1);
    let partials: DeviceBuffer<f32> = lab.device.alloc(partials)?;
    let seconds = lab.time(|stream, nth| {
        let params = AttendParams {
            segments: segments.ptr(),
            partials: partials.ptr(),
            n_splits,
            ..pool.params(shape, contexts, [q.at(nth), out.at(nth)], nth)
        };
        // SAFETY: rows, pages and operands have the shapes given and live until the time is read.
        unsafe { attention.decode(stream, &params, contexts.rows) }
    })?;
    let Contexts {
        rows,
        tokens,
        page_size,
    } = contexts;
    let keys = u64::from(rows) * u64::from(tokens);
    let kv_width = u64::from(shape.n_kv_heads * shape.head_dim);
    let pages = u64::from(rows) * u64::from(tokens.div_ceil(page_size)) * 4;
    Ok(Timing {
        name: format!("decode attention, {rows} rows, {tokens} tokens, page {page_size}"),
        seconds,
        bytes: 2 * 2 * keys * kv_width + 2 * 2 * u64::from(rows) * width as u64 + pages,
        flop: 4 * keys * width as u64,
    })
}

fn prefill(
    lab: &Lab,
    attention: &Attention,
    shape: AttendShape,
    contexts: Contexts,
) -> Result<Timing, DriverError> {
    let pool = Pool::new(lab, shape, contexts)?;
    let width = (shape.n_heads * shape.head_dim) as usize;
    let q = lab.elements(ELEMENT, contexts.tokens as usize * width)?;
    let out = lab.elements(ELEMENT, contexts.tokens as usize * width)?;
    let segments = lab.upload(&[Segment {
        row: 0,
        first_token: 0,
        n_tokens: contexts.tokens,
        first_position: 0,
    }])?;
    let per_tile = attention.queries_per_tile();
    let tile = |tile: u32| Tile {
        segment: 0,
        first_query: tile * per_tile,
    };
    // Longest first, as the executor orders them.
    let tiles: Vec<Tile> = (0..contexts.tokens.div_ceil(per_tile))
        .rev()
        .map(tile)
        .collect();
    let n_tiles = tiles.len() as u32;
    let tiles = lab.upload(&tiles)?;
    let seconds = lab.time(|stream, nth| {
        let params = AttendParams {
            segments: segments.ptr(),
            tiles: tiles.ptr(),
            ..pool.params(shape, contexts, [q.at(nth), out.at(nth)], nth)
        };
        // SAFETY: as in `decode`.
        unsafe { attention.prefill(stream, &params, n_tiles) }
    })?;
    let tokens = u64::from(contexts.tokens);
    let kv_width = u64::from(shape.n_kv_heads * shape.head_dim);
    Ok(Timing {
        name: format!("prefill attention, {tokens} tokens"),
        seconds,
        bytes: 2 * 2 * tokens * (kv_width + width as u64),
        flop: 4 * tokens * (tokens + 1) / 2 * width as u64,
    })
}
