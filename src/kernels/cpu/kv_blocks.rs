//! Copies blocks of tokens between the KV pool and the buffers of the KV store.
//!
//! A block holds its tokens' part of every buffer, layer by layer and head by head, as [`KvLayout::block_planes`]
//! defines; its bytes do not depend on which pages the tokens are on.

use std::ops::Range;

use smallvec::SmallVec;

use super::element::Storage;
use super::labels::Labels;
use super::tensor::Shared;
use super::threads::ThreadPool;
use souffleur_base::ids::PageId;
use souffleur_base::kv_layout::{KvDtype, KvLayout, PagedKv, SCALE_BYTES, Values};

pub struct BlockMap {
    layers: Vec<LayerMap>,
    block_tokens: usize,
    page_size: usize,
    len: usize,
    runs: Vec<SlotRun>,
}

struct LayerMap {
    layer: usize,
    planes: SmallVec<[PlaneMap; 4]>,
}

/// One contiguous range per head, at `block_offset` in the block and at `memory_offset` in memory; all in bytes.
#[derive(Clone, Copy)]
struct PlaneMap {
    memory: Memory,
    block_offset: usize,
    memory_offset: usize,
    /// Distance from a head's first slot to the next head's.
    head_stride: usize,
    slot_bytes: usize,
    n_heads: usize,
}

#[derive(Clone, Copy)]
enum Memory {
    Elements,
    Labels,
    Scales,
}

/// Tokens of a block in consecutive slots.
struct SlotRun {
    token: usize,
    slot: usize,
    len: usize,
}

struct LayerMemory<'a> {
    elements: Shared<'a, u8>,
    labels: Shared<'a, u8>,
    scales: Shared<'a, u8>,
}

impl LayerMemory<'_> {
    fn of(&self, memory: Memory) -> &Shared<'_, u8> {
        match memory {
            Memory::Elements => &self.elements,
            Memory::Labels => &self.labels,
            Memory::Scales => &self.scales,
        }
    }
}

impl BlockMap {
    /// # Errors
    /// As [`KvLayout::block_planes`].
    pub fn new(
        layout: &KvLayout,
        n_slots: usize,
        (block_tokens, page_size): (usize, usize),
    ) -> Result<Self, String> {
        let len = layout.block_planes(block_tokens)?.iter().sum();
        let mut at = 0;
        let paged = layout.layers().iter().enumerate();
        let paged = paged.filter_map(|(layer, kv)| Some((layer, kv.pages()?)));
        let layers = paged.map(|(layer, pages)| {
            let planes = planes_of(pages, n_slots);
            let planes = planes.into_iter().map(|mut plane| {
                plane.block_offset = at;
                at += plane.n_heads * plane.slot_bytes * block_tokens;
                plane
            });
            LayerMap {
                layer,
                planes: planes.collect(),
            }
        });
        let layers = layers.collect();
        assert_eq!(at, len, "the block's size must match the KV layout");
        Ok(Self {
            layers,
            block_tokens,
            page_size,
            len,
            runs: Vec::new(),
        })
    }

    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    pub fn bytes(&self) -> usize {
        self.len
    }

    /// # Panics
    /// If `pages` do not hold exactly a block's tokens, or `block` has another length.
    pub fn gather(
        &mut self,
        pool: &mut ThreadPool,
        (layers, labels): (&mut [Storage], &mut [Option<Labels>]),
        pages: &[PageId],
        block: &mut [u8],
    ) {
        assert_eq!(
            block.len(),
            self.len,
            "the buffer must be as long as a block"
        );
        self.find_runs(pages, 0..self.block_tokens);
        let block = Shared::new(block);
        let memories = memories(layers, labels);
        let (maps, runs, tokens) = (&self.layers, &self.runs, self.block_tokens);
        pool.for_each(maps.len(), self.len, &|index| {
            let map = &maps[index];
            for_pieces(map, runs, tokens, |plane, in_block, in_memory, len| {
                let memory = memories[map.layer].of(plane.memory);
                // SAFETY: no thread writes to the pool meanwhile, and each item reads its own layer; parts of the block
                // belong to one layer, head and token each.
                unsafe {
                    let from = memory.part(in_memory, len);
                    block.part(in_block, len).copy_from_slice(from);
                }
            });
        });
    }

    /// Copies the range `tokens` of a block to `pages`.
    ///
    /// # Panics
    /// If `pages` do not hold exactly these tokens, or `block` has another length.
    pub fn scatter(
        &mut self,
        pool: &mut ThreadPool,
        (layers, labels): (&mut [Storage], &mut [Option<Labels>]),
        (pages, tokens): (&[PageId], Range<usize>),
        block: &[u8],
    ) {
        assert_eq!(
            block.len(),
            self.len,
            "the buffer must be as long as a block"
        );
        self.find_runs(pages, tokens);
        let memories = memories(layers, labels);
        let (maps, runs, tokens) = (&self.layers, &self.runs, self.block_tokens);
        pool.for_each(maps.len(), self.len, &|index| {
            let map = &maps[index];
            for_pieces(map, runs, tokens, |plane, in_block, in_memory, len| {
                let memory = memories[map.layer].of(plane.memory);
                let from = &block[in_block..in_block + len];
                // SAFETY: each item writes to its own layer, one piece after the other.
                unsafe { memory.part(in_memory, len) }.copy_from_slice(from);
            });
        });
    }

    fn find_runs(&mut self, pages: &[PageId], tokens: Range<usize>) {
        let n_tokens = pages.len() * self.page_size;
        assert!(
            tokens.end <= self.block_tokens && tokens.len() == n_tokens,
            "pages of {n_tokens} tokens cannot hold tokens {tokens:?} of a block of {}",
            self.block_tokens
        );
        self.runs.clear();
        for (index, page) in pages.iter().enumerate() {
            let slot = page.index() * self.page_size;
            match self.runs.last_mut() {
                Some(run) if run.slot + run.len == slot => run.len += self.page_size,
                _ => self.runs.push(SlotRun {
                    token: tokens.start + index * self.page_size,
                    slot,
                    len: self.page_size,
                }),
            }
        }
    }
}

/// Calls `copy` with each piece of a layer: its plane, its offsets in the block and in the memory, and its length.
fn for_pieces(
    map: &LayerMap,
    runs: &[SlotRun],
    block_tokens: usize,
    copy: impl Fn(&PlaneMap, usize, usize, usize),
) {
    for plane in &map.planes {
        for head in 0..plane.n_heads {
            let in_block = plane.block_offset + head * block_tokens * plane.slot_bytes;
            let in_memory = plane.memory_offset + head * plane.head_stride;
            for run in runs {
                copy(
                    plane,
                    in_block + run.token * plane.slot_bytes,
                    in_memory + run.slot * plane.slot_bytes,
                    run.len * plane.slot_bytes,
                );
            }
        }
    }
}

fn memories<'a>(
    layers: &'a mut [Storage],
    labels: &'a mut [Option<Labels>],
) -> Vec<LayerMemory<'a>> {
    let both = layers.iter_mut().zip(labels);
    let memories = both.map(|(storage, labels)| {
        let [elements, scales] = storage.bytes_mut();
        let labels = labels.as_mut().map(|labels| {
            let [labels, _] = labels.storage_mut().bytes_mut();
            labels
        });
        LayerMemory {
            elements: Shared::new(elements),
            labels: Shared::new(labels.unwrap_or_default()),
            scales: Shared::new(scales),
        }
    });
    memories.collect()
}

/// The planes of a layer as [`Planes`](super::planes::Planes) and [`Labels`] place them; `block_offset` is not set yet.
fn planes_of(pages: &PagedKv, n_slots: usize) -> SmallVec<[PlaneMap; 4]> {
    let element = pages.dtype.bytes();
    let plane = |memory, memory_offset: usize, slot_bytes: usize| PlaneMap {
        memory,
        block_offset: 0,
        memory_offset,
        head_stride: n_slots * slot_bytes,
        slot_bytes,
        n_heads: pages.heads,
    };
    let key = pages.key_dim * element;
    let mut planes: SmallVec<[PlaneMap; 4]> = SmallVec::new();
    match pages.values {
        Values::InKeys { .. } => planes.push(plane(Memory::Elements, 0, key)),
        Values::Own { dim } if dim == pages.key_dim => {
            planes.push(plane(Memory::Elements, 0, key));
            planes.push(plane(Memory::Elements, pages.heads * n_slots * key, key));
        }
        Values::Own { dim } => planes.push(plane(Memory::Elements, 0, key + dim * element)),
    }
    if pages.labels > 0 {
        planes.push(plane(Memory::Labels, 0, pages.labels * element));
    }
    if pages.dtype == KvDtype::Int8 {
        let scales = pages.scales_per_token() / pages.heads;
        planes.push(plane(Memory::Scales, 0, scales * SCALE_BYTES));
    }
    planes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeadShape;
    use crate::cpu::kv::KvPool;
    use crate::cpu::planes::Planes;
    use souffleur_base::kv_layout::LayerKv;

    fn layer(heads: usize, key_dim: usize, values: Values, dtype: KvDtype) -> LayerKv {
        LayerKv::Pages(PagedKv {
            heads,
            key_dim,
            values,
            labels: 0,
            dtype,
        })
    }

    fn layout() -> KvLayout {
        let own = |dim| Values::Own { dim };
        KvLayout::new(vec![
            layer(2, 8, own(8), KvDtype::F32),
            layer(3, 8, own(4), KvDtype::BF16),
            layer(1, 12, Values::InKeys { dim: 8 }, KvDtype::F16),
            layer(2, 72, own(72), KvDtype::Int8),
            LayerKv::Shared(0),
        ])
    }

    fn pages(ids: &[u32]) -> Vec<PageId> {
        ids.iter().copied().map(PageId::new).collect()
    }

    fn pool(page_size: usize) -> (KvPool, ThreadPool, BlockMap) {
        let n_slots = 9 * page_size;
        let kv = KvPool::new(&layout(), (n_slots, 0), None);
        let map = BlockMap::new(&layout(), n_slots, (8, page_size)).expect("all layers have pages");
        (kv, ThreadPool::new(2).expect("threads start"), map)
    }

    #[test]
    fn a_block_has_the_same_bytes_on_other_pages() {
        for (page_size, from, to) in [
            (
                1,
                &[8, 7, 6, 5, 1, 2, 3, 4][..],
                &[1, 2, 3, 4, 5, 6, 7, 8][..],
            ),
            (4, &[3, 1], &[7, 8]),
            (8, &[5], &[2]),
        ] {
            let (mut kv, mut threads, mut map) = pool(page_size);
            kv.fill_with_noise();
            let mut block = vec![0; map.bytes()];
            kv.gather(&mut map, &mut threads, &pages(from), &mut block);
            let (mut other, ..) = pool(page_size);
            other.scatter(&mut map, &mut threads, (&pages(to), 0..8), &block);
            let mut again = vec![0; map.bytes()];
            other.gather(&mut map, &mut threads, &pages(to), &mut again);
            assert!(block == again && block.iter().any(|byte| *byte != 0));
        }
    }

    #[test]
    fn scattering_a_part_writes_only_its_pages() {
        let (mut kv, mut threads, mut map) = pool(2);
        kv.fill_with_noise();
        let mut block = vec![0; map.bytes()];
        kv.gather(&mut map, &mut threads, &pages(&[1, 2, 3, 4]), &mut block);
        let (mut other, ..) = pool(2);
        other.scatter(&mut map, &mut threads, (&pages(&[6, 5]), 2..6), &block);
        let mut found = vec![0; map.bytes()];
        other.gather(&mut map, &mut threads, &pages(&[7, 6, 5, 8]), &mut found);
        let mut expected = vec![0; map.bytes()];
        for layer in &map.layers {
            for plane in &layer.planes {
                for head in 0..plane.n_heads {
                    let first = plane.block_offset + head * 8 * plane.slot_bytes;
                    let part = first + 2 * plane.slot_bytes..first + 6 * plane.slot_bytes;
                    expected[part.clone()].copy_from_slice(&block[part]);
                }
            }
        }
        assert!(found == expected);
    }

    #[test]
    fn planes_match_the_layout_of_kernels() {
        let (mut kv, mut threads, mut map) = pool(1);
        kv.fill_with_noise();
        let mut block = vec![0; map.bytes()];
        let ids = [3, 4, 5, 6, 7, 8, 1, 2];
        kv.gather(&mut map, &mut threads, &pages(&ids), &mut block);
        // The second layer: keys and values of different widths are adjacent.
        let heads = HeadShape {
            n_heads: 3,
            n_kv_heads: 3,
            key_dim: 8,
            values: Values::Own { dim: 4 },
            scale: 1.0,
            score_cap: None,
            window: None,
        };
        let [elements, _] = kv.layer_mut(1).bytes_mut();
        let planes = Planes::of(&heads, elements.len() / 2);
        let at = map.layers[1].planes[0].block_offset;
        for (token, slot) in ids.iter().enumerate() {
            let value = 2 * (planes.values(2) + planes.slot(*slot as usize));
            let in_block = at + ((2 * 8 + token) * 12 + 8) * 2;
            assert_eq!(elements[value..value + 8], block[in_block..in_block + 8]);
        }
    }
}
