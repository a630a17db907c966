//! Activation statistics for double sparsity: summed magnitudes of query and key channels, to rank channels.

use super::batch::CpuBatch;
use super::element::{Borrowed, Element, Storage};
use super::planes::Planes;
use super::tensor::Tensor;
use crate::HeadShape;

/// Sums over tokens of the absolute values of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChannelSums {
    /// Sum of absolute products of query and key of the same token.
    pub qk: f64,
    pub q: f64,
    pub k: f64,
}

/// The sums of each attention layer's key heads, `[n_kv_heads * key_dim]`; the sums of a group's query heads are added.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    layers: Vec<Vec<ChannelSums>>,
}

impl Calibration {
    /// The sums of each layer; empty for layers in which no query has attended.
    pub fn layers(&self) -> &[Vec<ChannelSums>] {
        &self.layers
    }

    /// Adds the rotated queries of a step and the keys of the same tokens.
    pub(super) fn add(
        &mut self,
        (layer, heads): (usize, &HeadShape),
        q: &Tensor,
        keys: &Storage,
        batch: &CpuBatch,
    ) {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, Vec::new);
        }
        let sums = &mut self.layers[layer];
        sums.resize(heads.n_kv_heads * heads.key_dim, ChannelSums::default());
        match keys {
            Storage::F32(keys) => add(sums, heads, q, keys.slice(), batch),
            Storage::F16(keys) => add(sums, heads, q, keys.slice(), batch),
            Storage::BF16(keys) => add(sums, heads, q, keys.slice(), batch),
            Storage::I8(..) => panic!("channel calibration needs keys that are not quantised"),
        }
    }
}

fn add<E: Element + Into<f32>>(
    sums: &mut [ChannelSums],
    heads: &HeadShape,
    q: &Tensor,
    keys: &[E],
    batch: &CpuBatch,
) {
    let (planes, dim) = (Planes::of(heads, keys.len()), heads.key_dim);
    for (token, slot) in batch.slots.iter().enumerate() {
        let queries = q.row(token);
        for (kv_head, sums) in sums.chunks_mut(dim).enumerate() {
            let key = &keys[planes.keys(kv_head) + planes.slot(*slot as usize)..][..dim];
            let group = &queries[kv_head * heads.group() * dim..][..heads.group() * dim];
            for (channel, (sums, key)) in sums.iter_mut().zip(key).enumerate() {
                let key: f32 = (*key).into();
                sums.k += f64::from(key.abs());
                for query in group.iter().skip(channel).step_by(dim) {
                    sums.q += f64::from(query.abs());
                    sums.qk += f64::from((query * key).abs());
                }
            }
        }
    }
}
