//! Layout of a layer's keys and values in the KV pool.

use std::ops::Range;

use super::kept::Kept;
use crate::HeadShape;
use souffleur_base::kv_layout::{KvDtype, Values};

/// Offsets of keys and values, in elements.
///
/// The keys of a head are contiguous, so that reading a sequence is one stream for each head: `[n_kv_heads, n_slots,
/// key_dim]`, followed by values in the same layout if they are as wide as keys. Values of another width follow each
/// key, `[n_kv_heads, n_slots, key_dim + value_dim]`. The values of MLA are the first elements of the key and
/// take no space.
///
/// The scales of quantised elements are separate, so that keys and values stay on whole cache lines:
/// `[n_kv_heads, n_slots, key scales + value scales]`.
#[derive(Clone, Copy, Debug)]
pub struct Planes {
    n_slots: usize,
    slot_stride: usize,
    head_stride: usize,
    value_offset: usize,
    head_elements: usize,
    key_scales: usize,
    /// Scales of a value; 0 if it is part of the key.
    value_scales: usize,
}

impl Planes {
    /// The planes of a layer with these heads in `kv`.
    ///
    /// # Panics
    /// As [`Self::of`].
    pub fn over<E: Kept>(heads: &HeadShape, kv: &[E]) -> Self {
        let scales = |dim| {
            if E::SCALED {
                KvDtype::Int8.scales(dim)
            } else {
                0
            }
        };
        Self {
            key_scales: scales(heads.key_dim),
            value_scales: scales(heads.values.stored_dim()),
            ..Self::of(heads, kv.len() - E::SLACK)
        }
    }

    /// The planes of a layer with these heads whose storage has `len` elements, and no scales.
    ///
    /// # Panics
    /// If values in keys are longer than the keys.
    pub fn of(heads: &HeadShape, len: usize) -> Self {
        let HeadShape {
            n_kv_heads,
            key_dim,
            values,
            ..
        } = *heads;
        let head_elements = key_dim + values.stored_dim();
        let n_slots = len / (n_kv_heads * head_elements);
        let (slot_stride, value_offset) = match values {
            Values::InKeys { dim } => {
                assert!(
                    dim <= key_dim,
                    "values of {dim} elements do not fit in keys of {key_dim}"
                );
                (key_dim, 0)
            }
            Values::Own { dim } if dim == key_dim => (key_dim, n_kv_heads * n_slots * key_dim),
            Values::Own { .. } => (head_elements, key_dim),
        };
        Self {
            n_slots,
            slot_stride,
            head_stride: n_slots * slot_stride,
            value_offset,
            head_elements,
            key_scales: 0,
            value_scales: 0,
        }
    }

    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    pub fn head_elements(&self) -> usize {
        self.head_elements
    }

    #[inline(always)]
    pub fn slot(&self, slot: usize) -> usize {
        slot * self.slot_stride
    }

    #[inline(always)]
    pub fn keys(&self, head: usize) -> usize {
        head * self.head_stride
    }

    #[inline(always)]
    pub fn values(&self, head: usize) -> usize {
        head * self.head_stride + self.value_offset
    }

    #[inline(always)]
    pub fn n_scales(&self) -> usize {
        self.key_scales + self.value_scales
    }

    #[inline(always)]
    pub fn scales_of_key(&self, head: usize, slot: usize) -> Range<usize> {
        let first = (head * self.n_slots + slot) * self.n_scales();
        first..first + self.key_scales
    }

    #[inline(always)]
    pub fn scales_of_value(&self, head: usize, slot: usize) -> Range<usize> {
        let first = self.scales_of_key(head, slot).end;
        first..first + self.value_scales
    }
}
