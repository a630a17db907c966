//! Pool of the recurrent states of sequences, for all layers that have one.
//!
//! Each NUMA node owns the parts of its heads in every state; the last node also owns the remaining elements.

use std::ops::Range;

use super::drafts::DraftLog;
use crate::cpu::element::{Borrowed, Elements};
use crate::cpu::homes;
use crate::cpu::nodes::{Nodes, PerNode};
use crate::cpu::tensor::Shared;
use crate::cpu::threads::ThreadPool;
use souffleur_base::ids::StateSlot;
use souffleur_base::kv_layout::{KvLayout, LayerKv, StateHeads};
use souffleur_base::row_state::StateStart;

const LINE: usize = 16;
const ELEMENT_COST: usize = 4;

/// The states of all slots, contiguous in each layer, initially zero.
pub struct StatePool {
    layers: Vec<LayerStates>,
    n_slots: usize,
    starts: Vec<StateStart>,
}

struct LayerStates {
    /// Elements from one state to the next; 0 in layers without states.
    stride: usize,
    len: usize,
    /// Number of heads at the start of a state; `head_len` elements each.
    heads: usize,
    head_len: usize,
    elements: Elements<f32>,
    drafts: DraftLog,
}

impl LayerStates {
    fn parts(&self, nodes: &Nodes) -> PerNode<Range<usize>> {
        let owned = nodes.heads(self.heads).into_iter();
        let mut parts: PerNode<_> = owned
            .map(|own| own.start * self.head_len..own.end * self.head_len)
            .collect();
        if let Some(last) = parts.last_mut() {
            last.end = self.stride;
        }
        parts
    }
}

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
            let heads = match layer {
                LayerKv::State { heads, .. } => *heads,
                _ => StateHeads::default(),
            };
            LayerStates {
                stride,
                len: elements,
                heads: heads.count,
                head_len: heads.bytes as usize / size_of::<f32>(),
                elements: Elements::zeros((n_slots + 1) * stride),
                drafts: DraftLog::none(),
            }
        });
        Self {
            layers: layers.collect(),
            n_slots,
            starts: Vec::new(),
        }
    }

    /// Places all memory on its NUMA node by first touch. Does nothing with one node.
    pub fn place_on_nodes(&mut self, pool: &mut ThreadPool) {
        if pool.nodes().count() == 1 {
            return;
        }
        for layer in &mut self.layers {
            let bytes_of = |elements: usize| elements * size_of::<f32>();
            let parts = layer.parts(pool.nodes()).into_iter();
            let parts: PerNode<_> = parts
                .map(|part| bytes_of(part.start)..bytes_of(part.end))
                .collect();
            let elements = (&mut layer.elements).slice();
            let bytes = bytemuck::cast_slice_mut(elements);
            homes::touch_states(pool, bytes, bytes_of(layer.stride), &parts);
        }
    }

    /// Allocates logs of `max_drafts` drafts for rows `0..n_rows`; a draft's inputs take at most `width` elements in a
    /// layer.
    pub fn keep_drafts(&mut self, n_rows: usize, (max_drafts, width): (usize, usize)) {
        let n_slots = self.n_slots;
        for layer in self.layers.iter_mut().filter(|layer| layer.stride > 0) {
            layer.drafts = DraftLog::new(n_slots, n_rows, (max_drafts, width));
        }
    }

    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// The states of a layer, and the drafts whose changes they do not have yet.
    pub fn layer(&mut self, layer: usize) -> (States<'_>, &mut DraftLog) {
        let layer = &mut self.layers[layer];
        let states = States {
            stride: layer.stride,
            elements: Shared::new((&mut layer.elements).slice()),
        };
        (states, &mut layer.drafts)
    }

    /// # Panics
    /// If the slot does not exist, or `bytes` is not as long as a state.
    pub fn gather(&mut self, slot: StateSlot, bytes: &mut [u8]) {
        let mut rest = bytes;
        for layer in &mut self.layers {
            let (part, others) = rest.split_at_mut(layer.len * size_of::<f32>());
            let elements = (&layer.elements).slice();
            let state = &elements[slot.index() * layer.stride..][..layer.len];
            part.copy_from_slice(bytemuck::cast_slice(state));
            rest = others;
        }
        assert!(rest.is_empty(), "the buffer is longer than a state");
    }

    /// Copies bytes from [`Self::gather`] into a slot.
    ///
    /// # Panics
    /// As [`Self::gather`].
    pub fn scatter(&mut self, slot: StateSlot, bytes: &[u8]) {
        let mut rest = bytes;
        for layer in &mut self.layers {
            layer.drafts.forget(slot);
            let (part, others) = rest.split_at(layer.len * size_of::<f32>());
            let (first, len) = (slot.index() * layer.stride, layer.len);
            let elements = (&mut layer.elements).slice();
            bytemuck::cast_slice_mut(&mut elements[first..first + len]).copy_from_slice(part);
            rest = others;
        }
        assert!(rest.is_empty(), "the data is longer than a state");
    }

    /// Initialises states to zero or copies of other states, without the drafts that those owe. No slot may be both read
    /// and written, or written twice.
    ///
    /// # Panics
    /// If a slot does not exist.
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
            "state slots must be at most {}",
            self.n_slots
        );
        for layer in &mut self.layers {
            starts
                .iter()
                .for_each(|start| layer.drafts.forget(start.live));
            let parts = layer.parts(pool.nodes());
            let node_items: PerNode<usize> = parts.iter().map(|_| starts.len()).collect();
            let stride = layer.stride;
            let elements = Shared::new((&mut layer.elements).slice());
            let states = States { stride, elements };
            let cost = starts.len() * stride * ELEMENT_COST;
            pool.for_each_by_node(&node_items, cost, &|index| {
                let start = starts[index % starts.len()];
                let part = parts[index / starts.len()].clone();
                // SAFETY: slots that are written are read by no other item, and each item has its own part.
                let live = unsafe { states.part(start.live, part.start, part.len()) };
                match start.from {
                    Some(from) => {
                        // SAFETY: as above; several items may read one slot.
                        let saved = unsafe { states.read(from, part.start, part.len()) };
                        live.copy_from_slice(saved);
                    }
                    None => live.fill(0.0),
                }
            });
        }
    }
}

impl<'a> States<'a> {
    /// # Safety
    /// No other thread uses the part meanwhile.
    ///
    /// # Panics
    /// If the part reaches beyond the states.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, slot: StateSlot, first: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.elements.part(slot.index() * self.stride + first, len) }
    }

    /// # Safety
    /// No thread writes to the part meanwhile.
    ///
    /// # Panics
    /// If the part reaches beyond the states.
    pub unsafe fn read(&self, slot: StateSlot, first: usize, len: usize) -> &'a [f32] {
        let start = slot.index() * self.stride + first;
        assert!(
            start + len <= self.elements.len(),
            "range {start}+{len} is outside the states"
        );
        // SAFETY: in bounds by the line above; the caller guarantees that no thread writes.
        unsafe { std::slice::from_raw_parts(self.elements.at(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers with four heads and five elements more, and one without heads.
    fn layout() -> KvLayout {
        let head_bytes = 32 * size_of::<f32>() as u64;
        let heads = LayerKv::State {
            bytes: 4 * head_bytes + 20,
            heads: StateHeads {
                count: 4,
                bytes: head_bytes,
            },
        };
        let plain = LayerKv::State {
            bytes: 100,
            heads: StateHeads::default(),
        };
        KvLayout::new(vec![heads, plain, heads])
    }

    #[test]
    fn states_begin_complete_for_every_division_among_nodes() {
        let n_bytes = layout().state_bytes() as usize;
        let elements: Vec<f32> = (1..=n_bytes / 4).map(|i| i as f32).collect();
        let state: &[u8] = bytemuck::cast_slice(&elements);
        for threads in [&[1][..], &[2, 1], &[1, 2, 1], &[1; 5]] {
            let mut pool = ThreadPool::on_nodes(threads).expect("threads start");
            let mut states = StatePool::new(&layout(), 3);
            states.place_on_nodes(&mut pool);
            let [first, second, third] = [1, 2, 3].map(StateSlot::new);
            states.scatter(first, state);
            states.scatter(third, state);
            let from = Some(first);
            let starts = [(second, from), (third, None)];
            let starts = starts.map(|(live, from)| StateStart { live, from });
            states.begin(&mut pool, starts.into_iter());
            let mut read = vec![0; n_bytes];
            for (slot, expected) in [(first, state), (second, state), (third, &state[..0])] {
                states.gather(slot, &mut read);
                match expected {
                    [] => assert!(read.iter().all(|byte| *byte == 0), "{threads:?}"),
                    _ => assert_eq!(read, expected, "{threads:?}"),
                }
            }
        }
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // one node has one part
    fn a_node_owns_its_heads_and_the_last_node_the_rest() {
        let states = StatePool::new(&layout(), 0);
        let parts = |layer: usize, threads: &[usize]| {
            let nodes = Nodes::new(threads.iter().copied());
            states.layers[layer].parts(&nodes).to_vec()
        };
        assert_eq!(parts(0, &[1]), [0..144]);
        assert_eq!(parts(0, &[3, 1]), [0..96, 96..144]);
        assert_eq!(parts(0, &[1; 5]), [0..144], "fewer heads than nodes");
        assert_eq!(parts(1, &[1, 1]), [0..32], "no heads");
    }
}
