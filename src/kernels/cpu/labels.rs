//! Labels of keys: copies of some channels, by which sparse attention selects keys of a long context.

use std::sync::Arc;

use super::element::{Borrowed, Storage};
use super::planes::Planes;
use crate::HeadShape;
use crate::sparsity::{DoubleSparsity, LabelChannels};
use souffleur_base::kv_layout::KvLayout;

/// The labels of a layer, `[n_kv_heads, n_slots, channels]`: those of neighbouring slots are contiguous, so that
/// scoring a sequence is one stream for each head. Slot 0, of the dummy page, stays zero.
pub struct Labels {
    layer: usize,
    rules: Arc<DoubleSparsity>,
    storage: Storage,
    n_slots: usize,
}

pub(super) fn of_layers(
    rules: Option<&Arc<DoubleSparsity>>,
    layout: &KvLayout,
    n_slots: usize,
) -> Vec<Option<Labels>> {
    let labels = |layer: usize| {
        let rules = rules?;
        let pages = layout.layers()[layer].pages()?;
        let channels = rules.layers.get(layer)?.as_ref()?;
        assert_eq!(
            channels.n_heads(),
            pages.heads,
            "each head of keys must have labels"
        );
        assert_eq!(
            channels.per_head(),
            pages.labels,
            "labels must have the layout's number of channels"
        );
        let len = pages.heads * n_slots * pages.labels;
        Some(Labels {
            layer,
            rules: rules.clone(),
            storage: Storage::zeros(pages.dtype, len, 0),
            n_slots,
        })
    };
    (0..layout.layers().len()).map(labels).collect()
}

impl Labels {
    pub fn rules(&self) -> &DoubleSparsity {
        &self.rules
    }

    pub fn channels(&self) -> &LabelChannels {
        let channels = self.rules.layers[self.layer].as_ref();
        channels.expect("a layer with labels must have channels")
    }

    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    pub fn storage_mut(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// Elements from a head's labels to the next head's.
    pub fn head_stride(&self) -> usize {
        self.n_slots * self.channels().per_head()
    }

    /// # Panics
    /// If keys and labels are of different types, or a slot does not exist.
    pub fn store(&mut self, keys: &Storage, heads: &HeadShape, slots: &[u32]) {
        let channels = self.rules.layers[self.layer].as_ref();
        let channels = channels.expect("a layer with labels must have channels");
        let places = (heads, channels, slots);
        match (keys, &mut self.storage) {
            (Storage::F32(keys), Storage::F32(labels)) => {
                copy(keys.slice(), labels.slice(), places)
            }
            (Storage::F16(keys), Storage::F16(labels)) => {
                copy(keys.slice(), labels.slice(), places)
            }
            (Storage::BF16(keys), Storage::BF16(labels)) => {
                copy(keys.slice(), labels.slice(), places)
            }
            _ => panic!("labels and keys must have the same element type"),
        }
    }
}

fn copy<E: Copy>(
    keys: &[E],
    labels: &mut [E],
    (heads, channels, slots): (&HeadShape, &LabelChannels, &[u32]),
) {
    let (planes, width) = (Planes::of(heads, keys.len()), channels.per_head());
    let n_slots = planes.n_slots();
    assert_eq!(
        labels.len(),
        channels.n_heads() * n_slots * width,
        "labels must have an element for each head, slot and channel"
    );
    for head in 0..channels.n_heads() {
        let of_head = channels.head(head);
        for slot in slots.iter().map(|slot| *slot as usize) {
            let key = &keys[planes.keys(head) + planes.slot(slot)..];
            let label = &mut labels[(head * n_slots + slot) * width..][..width];
            for (to, channel) in label.iter_mut().zip(of_head) {
                *to = key[usize::from(*channel)];
            }
        }
    }
}
