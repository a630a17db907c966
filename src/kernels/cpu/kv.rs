//! The KV pool and the page table.
//!
//! A token's K/V is at slot `page * page_size + offset`; page 0 is the dummy page and holds nothing.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;

use super::element::{Borrowed, Element, Storage};
use super::homes;
use super::kv_blocks::BlockMap;
use super::labels::{self, Labels};
use super::threads::ThreadPool;
use crate::HeadShape;
use crate::sparsity::DoubleSparsity;
use souffleur_base::ids::{PageId, RowId};
use souffleur_base::kv_layout::{KvDtype, KvLayout, LayerKv, PagedKv, Values};

/// Keys and values of all layers, laid out as in [`Planes`](super::planes::Planes). Slot 0 (dummy page) stays zero.
pub struct KvPool {
    layers: Vec<Storage>,
    /// Layouts of the layers that have paged buffers.
    layouts: Vec<Option<PagedKv>>,
    /// Whether each layer uses window pages.
    windowed: Vec<bool>,
    labels: Vec<Option<Labels>>,
    hides_labels: bool,
}

impl KvPool {
    /// Allocates memory for `n_slots` tokens, `n_window_slots` in layers with window pages; it is committed on use.
    ///
    /// # Panics
    /// If the labels of `sparsity` do not match the layout.
    pub fn new(
        layout: &KvLayout,
        (n_slots, n_window_slots): (usize, usize),
        sparsity: Option<&Arc<DoubleSparsity>>,
    ) -> Self {
        let is_windowed = |layer: &LayerKv| matches!(layer, LayerKv::Window { .. });
        let storage = |layer: &LayerKv| match layer.pages() {
            Some(pages) => {
                let n_slots = if is_windowed(layer) {
                    n_window_slots
                } else {
                    n_slots
                };
                Storage::zeros(
                    pages.dtype,
                    n_slots * pages.elements_per_token(),
                    n_slots * pages.scales_per_token(),
                )
            }
            None => Storage::zeros(KvDtype::F32, 0, 0),
        };
        Self {
            layers: layout.layers().iter().map(storage).collect(),
            layouts: layout
                .layers()
                .iter()
                .map(|layer| layer.pages().copied())
                .collect(),
            windowed: layout.layers().iter().map(is_windowed).collect(),
            labels: labels::of_layers(sparsity, layout, n_slots),
            hides_labels: false,
        }
    }

    /// Places all memory on NUMA nodes by first touch: by heads, or interleaved if there are fewer heads than nodes.
    pub fn place_on_nodes(&mut self, pool: &mut ThreadPool) {
        if pool.nodes().count() == 1 {
            return;
        }
        let layers = self.layers.iter_mut().zip(&self.layouts);
        for (storage, pages) in
            layers.filter_map(|(storage, pages)| Some((storage, pages.as_ref()?)))
        {
            let planes = match pages.values {
                Values::Own { dim } if dim == pages.key_dim => 2,
                Values::Own { .. } | Values::InKeys { .. } => 1,
            };
            let [elements, scales] = storage.bytes_mut();
            homes::touch(pool, elements, (planes, pages.heads));
            homes::touch(pool, scales, (1, pages.heads));
        }
        for labels in self.labels.iter_mut().flatten() {
            let heads = labels.channels().n_heads();
            let [elements, _] = labels.storage_mut().bytes_mut();
            homes::touch(pool, elements, (1, heads));
        }
    }

    pub fn is_windowed(&self, layer: usize) -> bool {
        self.windowed[layer]
    }

    pub fn layer(&self, layer: usize) -> &Storage {
        &self.layers[layer]
    }

    pub fn layer_mut(&mut self, layer: usize) -> &mut Storage {
        &mut self.layers[layer]
    }

    /// The labels of a layer; `None` if it has none, or while labels are hidden.
    pub fn labels(&self, layer: usize) -> Option<&Labels> {
        self.labels[layer].as_ref().filter(|_| !self.hides_labels)
    }

    /// For measurements.
    pub fn hide_labels(&mut self, hides: bool) {
        self.hides_labels = hides;
    }

    /// For measurements: fills keys, values and labels with random numbers; labels do not match their keys.
    pub fn fill_with_noise(&mut self) {
        let labels = self.labels.iter_mut().flatten().map(Labels::storage_mut);
        for storage in self.layers.iter_mut().chain(labels) {
            match storage {
                Storage::F32(elements) => fill_with_noise(elements.slice()),
                Storage::F16(elements) => fill_with_noise(elements.slice()),
                Storage::BF16(elements) => fill_with_noise(elements.slice()),
                Storage::I8(codes, scales) => {
                    codes
                        .slice()
                        .iter_mut()
                        .zip(noise())
                        .for_each(|(to, noise)| *to = (noise * 127.0) as i8);
                    scales.slice().fill(bf16::from_f32(1.0 / 127.0));
                }
            }
        }
    }

    pub fn gather(
        &mut self,
        map: &mut BlockMap,
        pool: &mut ThreadPool,
        pages: &[PageId],
        block: &mut [u8],
    ) {
        map.gather(pool, (&mut self.layers, &mut self.labels), pages, block);
    }

    pub fn scatter(
        &mut self,
        map: &mut BlockMap,
        pool: &mut ThreadPool,
        to: (&[PageId], Range<usize>),
        block: &[u8],
    ) {
        map.scatter(pool, (&mut self.layers, &mut self.labels), to, block);
    }

    pub fn store_labels(&mut self, layer: usize, heads: &HeadShape, slots: &[u32]) {
        if let Some(labels) = &mut self.labels[layer] {
            labels.store(&self.layers[layer], heads, slots);
        }
    }
}

/// Pseudorandom numbers in [-1, 1).
fn noise() -> impl Iterator<Item = f32> {
    let mut state = 0x9e37_79b9_u32;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn fill_with_noise<E: Element>(elements: &mut [E]) {
    elements
        .iter_mut()
        .zip(noise())
        .for_each(|(to, noise)| *to = E::narrow(noise));
}

pub struct PageTable {
    page_tokens: usize,
    rows: Vec<Vec<PageId>>,
}

impl PageTable {
    pub fn new(n_rows: usize, page_size: usize) -> Self {
        Self {
            page_tokens: page_size,
            rows: vec![Vec::new(); n_rows],
        }
    }

    pub fn page_size(&self) -> usize {
        self.page_tokens
    }

    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    pub fn row(&self, row: RowId) -> &[PageId] {
        &self.rows[row.index()]
    }

    pub fn row_mut(&mut self, row: RowId) -> &mut Vec<PageId> {
        &mut self.rows[row.index()]
    }

    /// # Panics
    /// If the row has no page at `position`.
    #[inline]
    pub fn slot(&self, row: RowId, position: usize) -> usize {
        let page = self.rows[row.index()][position / self.page_tokens];
        page.index() * self.page_tokens + position % self.page_tokens
    }

    /// Calls `each` with every position and its slot, in ascending order; divides by the page size only once.
    ///
    /// # Panics
    /// If the row's pages do not cover the positions.
    #[inline(always)]
    pub fn for_slots(
        &self,
        row: RowId,
        positions: Range<usize>,
        mut each: impl FnMut(usize, usize),
    ) {
        let pages = &self.rows[row.index()];
        let (mut position, mut page) = (positions.start, positions.start / self.page_tokens);
        while position < positions.end {
            let offset = position - page * self.page_tokens;
            let first = pages[page].index() * self.page_tokens + offset;
            let n = (self.page_tokens - offset).min(positions.end - position);
            for i in 0..n {
                each(position + i, first + i);
            }
            (position, page) = (position + n, page + 1);
        }
    }
}
