//! The states of sequences, in all layers that keep one.

use crate::ids::StateSlot;
use crate::kernels::cpu::element::{Borrowed, Elements};
use crate::kernels::cpu::tensor::Shared;
use crate::kernels::cpu::threads::ThreadPool;
use crate::state::pool::kv_layout::KvLayout;
use crate::state::step::StateStart;

/// Elements of a cache line, at which every state begins.
const LINE: usize = 16;
/// Multiply-adds that copying an element costs about.
const ELEMENT_COST: usize = 4;

/// The states of sequences: for each layer those of all slots, side by side, zero at first.
pub struct StatePool {
    layers: Vec<LayerStates>,
    n_slots: usize,
    /// Kept for its memory.
    starts: Vec<StateStart>,
}

struct LayerStates {
    /// From a state to the next one, in elements; 0 in layers that keep none.
    stride: usize,
    /// Elements of a state.
    len: usize,
    elements: Elements<f32>,
}

/// The states of a layer, for threads that write different parts of them.
#[derive(Clone, Copy)]
pub struct States<'a> {
    stride: usize,
    elements: Shared<'a, f32>,
}

impl StatePool {
    /// Allocates states for slots `0..=n_slots`; the system commits memory on first use.
    pub fn new(layout: &KvLayout, n_slots: usize) -> Self {
        let layers = layout.layers().iter().map(|layer| {
            let elements = layer.state_bytes() as usize / size_of::<f32>();
            let stride = elements.next_multiple_of(LINE);
            LayerStates {
                stride,
                len: elements,
                elements: Elements::zeros((n_slots + 1) * stride),
            }
        });
        Self {
            layers: layers.collect(),
            n_slots,
            starts: Vec::new(),
        }
    }

    /// The states of a layer.
    pub fn layer(&mut self, layer: usize) -> States<'_> {
        let layer = &mut self.layers[layer];
        States {
            stride: layer.stride,
            elements: Shared::new((&mut layer.elements).slice()),
        }
    }

    /// Copies the state of a slot, layer by layer.
    ///
    /// # Panics
    /// If there is no such slot, or `bytes` has another length.
    pub fn gather(&mut self, slot: StateSlot, bytes: &mut [u8]) {
        let mut rest = bytes;
        for layer in &mut self.layers {
            let (part, others) = rest.split_at_mut(layer.len * size_of::<f32>());
            let elements = (&layer.elements).slice();
            let state = &elements[slot.index() * layer.stride..][..layer.len];
            part.copy_from_slice(bytemuck::cast_slice(state));
            rest = others;
        }
        assert!(rest.is_empty(), "bytes of a state");
    }

    /// Copies what [`Self::gather`] has written to a slot.
    ///
    /// # Panics
    /// As there.
    pub fn scatter(&mut self, slot: StateSlot, bytes: &[u8]) {
        let mut rest = bytes;
        for layer in &mut self.layers {
            let (part, others) = rest.split_at(layer.len * size_of::<f32>());
            let (first, len) = (slot.index() * layer.stride, layer.len);
            let elements = (&mut layer.elements).slice();
            bytemuck::cast_slice_mut(&mut elements[first..first + len]).copy_from_slice(part);
            rest = others;
        }
        assert!(rest.is_empty(), "bytes of a state");
    }

    /// Begins states: each as another one is, or zero. No slot is both read and written, and none is written twice.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn begin(&mut self, pool: &mut ThreadPool, starts: impl Iterator<Item = StateStart>) {
        self.starts.clear();
        self.starts.extend(starts);
        let starts = self.starts.as_slice();
        if starts.is_empty() {
            return;
        }
        let exists = |slot: StateSlot| slot.index() <= self.n_slots;
        assert!(
            starts
                .iter()
                .all(|start| exists(start.live) && start.from.is_none_or(exists)),
            "there are {} states",
            self.n_slots
        );
        let layers = self.layers.iter_mut().map(|layer| {
            let elements = Shared::new((&mut layer.elements).slice());
            (layer.stride, elements)
        });
        for (stride, elements) in layers {
            let states = States { stride, elements };
            let cost = starts.len() * stride * ELEMENT_COST;
            pool.for_each(starts.len(), cost, &|index| {
                let start = starts[index];
                // SAFETY: slots that are written are neither read nor written by another item.
                let live = unsafe { states.part(start.live, 0, stride) };
                match start.from {
                    // SAFETY: as above; several items may read one slot.
                    Some(from) => live.copy_from_slice(unsafe { states.read(from, 0, stride) }),
                    None => live.fill(0.0),
                }
            });
        }
    }
}

impl<'a> States<'a> {
    /// A part of a slot's state, to write.
    ///
    /// # Safety
    /// Nobody else uses the part meanwhile.
    ///
    /// # Panics
    /// If the part reaches beyond the states.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, slot: StateSlot, first: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.elements.part(slot.index() * self.stride + first, len) }
    }

    /// A part of a slot's state.
    ///
    /// # Safety
    /// Nobody writes to the part meanwhile.
    ///
    /// # Panics
    /// If the part reaches beyond the states.
    pub unsafe fn read(&self, slot: StateSlot, first: usize, len: usize) -> &'a [f32] {
        let start = slot.index() * self.stride + first;
        assert!(
            start + len <= self.elements.len(),
            "part {start}+{len} of the states"
        );
        // SAFETY: in bounds by the line above; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.elements.at(start), len) }
    }
}
