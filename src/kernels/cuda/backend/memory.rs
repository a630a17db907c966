//! What a step takes, and where keys and values lie.

use super::{Arena, CudaSizes, Device, DeviceBuffer, DevicePtr, DriverError};
use crate::kernels::cuda::params::Element;
use crate::kernels::cuda::sampling::SamplingShape;
use crate::kernels::shape::DecoderShape;

/// Pools begin at multiples of this.
const ALIGNMENT: usize = 256;
/// Blocks of a decode for each multiprocessor: contexts are cut into more parts until there are so many.
const DECODE_BLOCKS: usize = 2;
/// A quarter more than the parts in use at once, for the gaps between them, and something for parts of a few bytes.
const GAPS_DIVISOR: usize = 4;
const SMALL_PARTS_BYTES: usize = 64 << 10;

/// Bytes of activations: what the largest step has in use at once.
pub fn activation_bytes(decoder: &DecoderShape, sizes: &CudaSizes, multiprocessors: u32) -> usize {
    let element = sizes.element.bytes();
    let matrix = |rows: usize, width: usize, bytes| Arena::rounded(rows * width * bytes);
    let tokens = sizes.step_tokens.max(sizes.n_rows);
    let attention = &decoder.attention;
    let (hidden, q) = (decoder.hidden, attention.q_width());
    let qkv = q + 2 * attention.kv_width();
    let all_along = matrix(tokens, hidden, 4) + matrix(tokens, attention.head_dim, 4);
    let normed = matrix(tokens, hidden, element);
    let heads = matrix(tokens, q, element);
    let projecting = normed + matrix(tokens, qkv, element) + heads;
    // Partial results: a record of an f32 head and two numbers for each part of each row and head.
    let parts = sizes.n_rows + DECODE_BLOCKS * multiprocessors as usize;
    let partials = matrix(parts * attention.n_heads, attention.head_dim + 2, 4);
    let attending = normed + 2 * heads + partials;
    // The tokens that are read may be nearly all.
    let picking = heads + matrix(sizes.n_rows, hidden, 4) + matrix(sizes.n_rows, q, element);
    let gating = normed + matrix(tokens, 3 * decoder.intermediate, element);
    let rows = sizes.logit_rows;
    let shape = SamplingShape::new(rows, decoder.vocab, multiprocessors);
    let reading =
        matrix(rows, hidden, element) + matrix(rows, decoder.vocab, 4) + shape.workspace_bytes();
    let most = projecting
        .max(attending)
        .max(picking)
        .max(gating)
        .max(reading);
    let in_use = all_along + most;
    (in_use + in_use / GAPS_DIVISOR + SMALL_PARTS_BYTES).next_multiple_of(ALIGNMENT)
}

/// Keys and values of all layers: for each layer `[n_slots, kv_width]` keys, then as many values.
pub(super) struct KvPool {
    memory: DeviceBuffer<u8>,
    plane_bytes: usize,
}

impl KvPool {
    /// A pool of layers whose keys take `plane_bytes`, and their values as much.
    pub(super) fn new(
        device: &Device,
        plane_bytes: usize,
        n_layers: usize,
    ) -> Result<Self, DriverError> {
        let plane_bytes = plane_bytes.next_multiple_of(ALIGNMENT);
        Ok(Self {
            memory: device.alloc(plane_bytes * 2 * n_layers)?,
            plane_bytes,
        })
    }

    pub(super) fn keys(&self, layer: usize) -> DevicePtr<Element> {
        self.memory.at(2 * layer * self.plane_bytes).cast()
    }

    pub(super) fn values(&self, layer: usize) -> DevicePtr<Element> {
        self.memory.at((2 * layer + 1) * self.plane_bytes).cast()
    }
}
