//! Sizes of activation memory, and the KV pool's layout on the GPU.

use super::{Arena, CudaSizes, Device, DeviceBuffer, DevicePtr, DriverError};
use crate::cuda::params::Element;
use crate::cuda::sampling::SamplingShape;
use crate::shape::DecoderShape;
use souffleur_base::kv_layout::{KvDtype, KvLayout, LayerKv, PagedKv, Values};

const ALIGNMENT: usize = 256;
/// Thread blocks of a decode for each multiprocessor: contexts are split into more parts until there are this many.
const DECODE_BLOCKS: usize = 2;
/// Adds a quarter to the parts in use at once, for fragmentation and small parts.
const GAPS_DIVISOR: usize = 4;
const SMALL_PARTS_BYTES: usize = 64 << 10;

/// Peak bytes of activations of a step.
pub fn activation_bytes(decoder: &DecoderShape, sizes: &CudaSizes, multiprocessors: u32) -> usize {
    let element = sizes.element.bytes();
    let matrix = |rows: usize, width: usize, bytes| Arena::rounded(rows * width * bytes);
    let tokens = sizes.step_tokens.max(sizes.n_rows);
    let attention = &decoder.attention;
    let (hidden, q) = (decoder.hidden, attention.q_width());
    let qkv = q + 2 * attention.kv_width();
    let whole_step = matrix(tokens, hidden, 4) + matrix(tokens, attention.head_dim, 4);
    let normed = matrix(tokens, hidden, element);
    let heads = matrix(tokens, q, element);
    let projection = normed + matrix(tokens, qkv, element) + heads;
    // Partial results: a record of an f32 head and two numbers for each part of each row and head.
    let parts = sizes.n_rows + DECODE_BLOCKS * multiprocessors as usize;
    let partials = matrix(parts * attention.n_heads, attention.head_dim + 2, 4);
    let attention_ops = normed + 2 * heads + partials;
    let row_selection = heads + matrix(sizes.n_rows, hidden, 4) + matrix(sizes.n_rows, q, element);
    let mlp = normed + matrix(tokens, 3 * decoder.intermediate, element);
    let rows = sizes.logit_rows;
    let shape = SamplingShape::new(rows, decoder.vocab, multiprocessors);
    let logits = match sizes.rank.count() {
        1 => matrix(rows, decoder.vocab, 4),
        // The rank's part, the parts of all ranks, and the whole rows.
        count => {
            let each = decoder.vocab.div_ceil(count);
            matrix(rows, each, 4) + 2 * matrix(rows * count, each, 4)
        }
    };
    let sampling = matrix(rows, hidden, element) + logits + shape.workspace_bytes();
    let peak = projection
        .max(attention_ops)
        .max(row_selection)
        .max(mlp)
        .max(sampling);
    let in_use = whole_step + peak;
    (in_use + in_use / GAPS_DIVISOR + SMALL_PARTS_BYTES).next_multiple_of(ALIGNMENT)
}

/// Rejects layers that the kernels do not support: they need one head shape, with values as wide as keys.
///
/// # Errors
/// If a layer is unsupported; the error names the first one and its KV or state.
pub fn check_layout(layout: &KvLayout) -> Result<(), DriverError> {
    let is_supported =
        |pages: &PagedKv| matches!(pages.values, Values::Own { dim } if dim == pages.key_dim);
    let first = layout.layers().first();
    for (index, layer) in layout.layers().iter().enumerate() {
        let reason = match layer {
            LayerKv::State { .. } => "there are no CUDA kernels for recurrent states",
            LayerKv::Window { .. } => "there are no CUDA kernels for sliding-window pages",
            LayerKv::Shared(_) => "the CUDA kernels need keys and values in every layer",
            LayerKv::Pages(pages) if !is_supported(pages) => {
                "the CUDA kernels need separate values, as wide as the keys"
            }
            LayerKv::Pages(pages) if pages.dtype == KvDtype::Int8 => {
                "there are no CUDA kernels for int8 KV (there are for --kv-cache-dtype auto)"
            }
            LayerKv::Pages(_) if Some(layer) != first => {
                "the CUDA kernels need the same heads in every layer"
            }
            LayerKv::Pages(_) => continue,
        };
        return Err(DriverError::unsupported(format!(
            "layer {index} keeps {layer}: {reason}; use --device cpu"
        )));
    }
    Ok(())
}

/// Keys and values of all layers, each buffer of a layer `[n_slots, elements]`.
pub(super) struct KvPool {
    memory: DeviceBuffer<u8>,
    /// Byte offsets of each layer's keys and values.
    layers: Vec<[usize; 2]>,
    /// Bytes of a token's keys in a layer, and of its values.
    token_bytes: usize,
    /// Bytes from one plane to the next; a layer has a plane of keys, then a plane of values.
    plane_stride: usize,
}

/// The planes of a pool, which all have the same size.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolPlanes {
    pub(super) start: DevicePtr<u8>,
    pub(super) n: usize,
    pub(super) token_bytes: usize,
    pub(super) stride: usize,
}

impl KvPool {
    pub(super) fn new(
        device: &Device,
        layout: &KvLayout,
        n_slots: usize,
    ) -> Result<Self, DriverError> {
        let mut bytes = 0;
        let layer = |layer: &LayerKv| {
            let mut starts = [bytes; 2];
            let buffers = layer.pages().into_iter().flat_map(PagedKv::buffers);
            for (start, buffer) in starts.iter_mut().zip(buffers) {
                *start = bytes;
                let plane_bytes = n_slots * buffer.bytes_per_token() as usize;
                bytes += plane_bytes.next_multiple_of(ALIGNMENT);
            }
            starts
        };
        let layers = layout.layers().iter().map(layer).collect();
        let first = layout.layers().first().and_then(LayerKv::pages);
        let keys = first.and_then(|pages| pages.buffers().next());
        let token_bytes = keys.map_or(0, |keys| keys.bytes_per_token() as usize);
        Ok(Self {
            memory: device.alloc(bytes)?,
            layers,
            token_bytes,
            plane_stride: (n_slots * token_bytes).next_multiple_of(ALIGNMENT),
        })
    }

    pub(super) fn planes(&self) -> PoolPlanes {
        PoolPlanes {
            start: self.memory.ptr(),
            n: 2 * self.layers.len(),
            token_bytes: self.token_bytes,
            stride: self.plane_stride,
        }
    }

    pub(super) fn keys(&self, layer: usize) -> DevicePtr<Element> {
        self.memory.at(self.layers[layer][0]).cast()
    }

    pub(super) fn values(&self, layer: usize) -> DevicePtr<Element> {
        self.memory.at(self.layers[layer][1]).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_base::kv_layout::StateHeads;

    fn pages(key_dim: usize, values: Values) -> LayerKv {
        LayerKv::Pages(PagedKv {
            heads: 2,
            key_dim,
            values,
            labels: 0,
            dtype: KvDtype::BF16,
        })
    }

    #[test]
    fn layers_without_kernels_are_refused_by_name() {
        let plain = pages(64, Values::Own { dim: 64 });
        let refused = |other| {
            let error = check_layout(&KvLayout::new(vec![plain, other]));
            error.expect_err("no kernel supports the layer").to_string()
        };
        assert!(check_layout(&KvLayout::new(vec![plain; 3])).is_ok());
        let int8 = LayerKv::Pages(PagedKv {
            dtype: KvDtype::Int8,
            ..*plain.pages().expect("the layer has pages")
        });
        for (other, reason) in [
            (int8, "no CUDA kernels for int8 KV"),
            (pages(96, Values::InKeys { dim: 64 }), "separate values"),
            (pages(96, Values::Own { dim: 64 }), "as wide as the keys"),
            (pages(96, Values::Own { dim: 96 }), "the same heads"),
            (
                LayerKv::State {
                    bytes: 8,
                    heads: StateHeads::default(),
                },
                "no CUDA kernels for recurrent states",
            ),
        ] {
            let error = refused(other);
            assert!(error.contains(reason), "{error}");
            assert!(error.contains(&format!("layer 1 keeps {other}")), "{error}");
            assert!(error.ends_with("use --device cpu"), "{error}");
        }
    }
}
