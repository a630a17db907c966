//! Memory of weights in huge pages, and cache-line-aligned buffers for activations.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::{MmapMut, MmapRaw};

use super::nodes::PerNode;

/// Size of a huge page on x86-64, and usually elsewhere.
const HUGE_PAGE_BYTES: usize = 2 << 20;

const CHUNK_BYTES: usize = 64 << 20;
const ALIGN_BYTES: usize = 64;

/// An arena that holds weights contiguously, in huge pages where the system has them, for fewer TLB misses. Each NUMA
/// node has its own pages (first touch).
#[derive(Default)]
pub struct WeightArena {
    nodes: PerNode<NodeArena>,
}

#[derive(Default)]
struct NodeArena {
    chunk: Option<Arc<MmapRaw>>,
    /// Used bytes of the chunk, including those before its first huge page.
    used: usize,
}

impl WeightArena {
    /// Returns `len` zero words for a node; pages take memory when they are first touched.
    ///
    /// # Panics
    /// If the process has no address space left.
    pub fn zeroed(&mut self, node: usize, len: usize) -> WeightWords {
        while self.nodes.len() <= node {
            self.nodes.push(NodeArena::default());
        }
        self.nodes[node].zeroed(len)
    }
}

impl NodeArena {
    fn zeroed(&mut self, len: usize) -> WeightWords {
        let bytes = len * size_of::<u32>();
        let has_room = |chunk: &Arc<MmapRaw>| chunk.len() - self.used >= bytes;
        let chunk = match self.chunk.take().filter(has_room) {
            Some(chunk) => chunk,
            None => {
                let (chunk, first) = new_chunk(bytes.max(CHUNK_BYTES));
                self.used = first;
                chunk
            }
        };
        let words = WeightWords {
            chunk: chunk.clone(),
            start: self.used,
            len,
        };
        self.used += bytes.next_multiple_of(ALIGN_BYTES);
        self.chunk = Some(chunk);
        words
    }
}

/// Maps `bytes`, rounded up to huge pages; returns the chunk and the offset of its first huge page.
fn new_chunk(bytes: usize) -> (Arc<MmapRaw>, usize) {
    let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    let map = MmapMut::map_anon(bytes + HUGE_PAGE_BYTES).expect("failed to map memory for weights");
    let first = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
    // A failure (no huge pages) only costs speed.
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(Advice::HugePage, first, bytes);
    (Arc::new(map.into()), first)
}

pub struct WeightWords {
    chunk: Arc<MmapRaw>,
    /// Offset in `chunk`, in bytes.
    start: usize,
    len: usize,
}

impl WeightWords {
    pub fn as_slice(&self) -> &[u32] {
        // SAFETY: the arena gave this part of the chunk, which is mapped, to `self` only; zeros are valid words.
        unsafe { std::slice::from_raw_parts(self.chunk.as_ptr().add(self.start).cast(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe {
            let start = self.chunk.as_mut_ptr().add(self.start);
            std::slice::from_raw_parts_mut(start.cast(), self.len)
        }
    }
}

/// A cache line, as large as a vector of AVX-512.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Line([u32; 16]);

// SAFETY: sixteen words without padding; zeros are valid words.
unsafe impl Zeroable for Line {}
// SAFETY: as above, and it is `Copy`.
unsafe impl Pod for Line {}

/// Cache-line-aligned 32-bit elements, so that no whole vector crosses two lines.
pub struct Lines<T> {
    lines: Vec<Line>,
    element: PhantomData<T>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            element: PhantomData,
        }
    }
}

impl<T: Pod> Lines<T> {
    /// Grows to hold `len` elements; new ones are zero.
    pub fn grow_to(&mut self, len: usize) {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            self.lines.resize(lines, Line::default());
        }
    }
}

impl<T: Pod> Deref for Lines<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.lines)
    }
}

impl<T: Pod> DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_and_keep_their_content_when_they_grow() {
        let mut lines = Lines::<f32>::default();
        for len in [1, 17, 4000] {
            lines.grow_to(len);
            assert!(lines.len() >= len);
            assert_eq!(lines.as_ptr().align_offset(64), 0);
            assert_eq!(lines[0], if len == 1 { 0.0 } else { 1.0 });
            lines[0] = 1.0;
        }
    }

    #[test]
    fn arena_words_are_zero_and_contiguous_from_a_huge_page_on() {
        let mut arena = WeightArena::default();
        let lens = [5, HUGE_PAGE_BYTES / 4 + 5, 0, CHUNK_BYTES / 4, 7];
        let mut words = lens.map(|len| arena.zeroed(0, len));
        for (i, (words, len)) in words.iter_mut().zip(lens).enumerate() {
            assert_eq!(words.as_slice(), vec![0; len], "words {i}");
            words.as_mut_slice().fill(i as u32 + 1);
        }
        for (i, (words, len)) in words.iter().zip(lens).enumerate() {
            assert_eq!(words.as_slice(), vec![i as u32 + 1; len], "words {i}");
        }
        let start = |i: usize| words[i].as_slice().as_ptr();
        assert_eq!(start(0).align_offset(HUGE_PAGE_BYTES), 0);
        assert_eq!(start(0).wrapping_byte_add(ALIGN_BYTES), start(1));
        assert_eq!(start(3).align_offset(HUGE_PAGE_BYTES), 0, "a new chunk");
    }

    #[test]
    fn no_page_of_an_arena_holds_words_of_two_nodes() {
        let mut arena = WeightArena::default();
        let words: Vec<WeightWords> = (0..9).map(|i| arena.zeroed(i % 3, 100 * (i + 1))).collect();
        let page = |at: *const u32| at as usize / HUGE_PAGE_BYTES;
        for (i, a) in words.iter().enumerate() {
            for (k, b) in words.iter().enumerate() {
                let [a, b] = [a, b].map(|words| page(words.as_slice().as_ptr()));
                assert_eq!(a == b, i % 3 == k % 3, "words {i} and {k}");
            }
        }
    }
}
