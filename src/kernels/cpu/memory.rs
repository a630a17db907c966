//! Memory of weights, in whole huge pages where it is worth them, and of activations, in whole cache lines.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};
use memmap2::{Advice, MmapMut};

/// Size of a huge page on x86-64 and of the usual ones elsewhere.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed 32-bit words. Large ones begin on a huge page and ask the system for more of them: a stream over the weights
/// then walks the page tables once every 2 MiB.
pub struct Words(Memory);

enum Memory {
    Small(Vec<u32>),
    /// The words begin at the byte `start` of the map.
    Mapped {
        map: MmapMut,
        start: usize,
        len: usize,
    },
}

impl Words {
    /// Takes memory for `len` words from the system, all zero; untouched pages take none.
    ///
    /// # Panics
    /// When the system has no address space left, as any allocation does.
    pub fn zeroed(len: usize) -> Self {
        let bytes = len * 4;
        if bytes < HUGE_PAGE_BYTES {
            return Self(Memory::Small(vec![0; len]));
        }
        let map = MmapMut::map_anon(bytes + HUGE_PAGE_BYTES).expect("memory for weights");
        let start = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // Refused where the system has no huge pages: slower, not wrong.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(Advice::HugePage, start, bytes);
        Self(Memory::Mapped { map, start, len })
    }

    /// The words.
    pub fn as_slice(&self) -> &[u32] {
        match &self.0 {
            Memory::Small(words) => words,
            Memory::Mapped { map, start, len } => {
                bytemuck::cast_slice(&map[*start..*start + len * 4])
            }
        }
    }

    /// The words, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u32] {
        match &mut self.0 {
            Memory::Small(words) => words,
            Memory::Mapped { map, start, len } => {
                bytemuck::cast_slice_mut(&mut map[*start..*start + *len * 4])
            }
        }
    }
}

/// A cache line, which is also what a vector of AVX-512 holds.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Line([u32; 16]);

// SAFETY: sixteen words and no padding; zeros are words.
unsafe impl Zeroable for Line {}
// SAFETY: as above, and it is `Copy`.
unsafe impl Pod for Line {}

/// 32-bit elements that begin at a cache line, so that no whole vector lies across two.
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
    pub fn make_room(&mut self, len: usize) {
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
    fn lines_begin_at_a_cache_line_and_keep_what_they_hold_as_they_grow() {
        let mut lines = Lines::<f32>::default();
        for len in [1, 17, 4000] {
            lines.make_room(len);
            assert!(lines.len() >= len);
            assert_eq!(lines.as_ptr().align_offset(64), 0);
            assert_eq!(lines[0], if len == 1 { 0.0 } else { 1.0 });
            lines[0] = 1.0;
        }
    }

    #[test]
    fn large_memory_is_zero_and_begins_on_a_huge_page() {
        let mut words = Words::zeroed(HUGE_PAGE_BYTES / 4 + 5);
        assert_eq!(words.as_slice().len(), HUGE_PAGE_BYTES / 4 + 5);
        assert_eq!(words.as_slice().as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
        assert!(words.as_slice().iter().all(|word| *word == 0));
        *words.as_mut_slice().last_mut().expect("not empty") = 7;
        assert_eq!(words.as_slice().last(), Some(&7));
    }
}
