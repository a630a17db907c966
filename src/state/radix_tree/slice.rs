//! Runs of tokens and page ids, cut in two without keeping the other half alive.

use std::ops::Range;
use std::sync::Arc;

/// A part of a shared buffer. At least three quarters of the buffer are in use by it.
#[derive(Debug)]
pub(super) struct Slice<T> {
    buffer: Arc<[T]>,
    range: Range<u32>,
}

impl<T: Copy> Slice<T> {
    pub(super) fn empty() -> Self {
        Self {
            buffer: Arc::default(),
            range: 0..0,
        }
    }

    /// # Panics
    /// If there are more than `u32::MAX` items.
    pub(super) fn new(items: &[T]) -> Self {
        let len = u32::try_from(items.len()).expect("an edge has fewer than 2^32 tokens");
        Self {
            buffer: Arc::from(items),
            range: 0..len,
        }
    }

    pub(super) fn get(&self) -> &[T] {
        &self.buffer[self.range.start as usize..self.range.end as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    pub(super) fn buffer(&self) -> &Arc<[T]> {
        &self.buffer
    }

    pub(super) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    /// Keeps everything from `at` on and returns what stands before it.
    pub(super) fn cut_front(&mut self, at: usize) -> Self {
        let middle = self.range.start + at as u32;
        let front = self.part(self.range.start..middle);
        *self = self.part(middle..self.range.end);
        front
    }

    /// Shares the buffer only if that wastes at most a quarter of it: otherwise a short half that is used for
    /// long would keep the memory of a long half that was evicted.
    fn part(&self, range: Range<u32>) -> Self {
        if range.len() * 4 >= self.buffer.len() * 3 {
            return Self {
                buffer: self.buffer.clone(),
                range,
            };
        }
        Self::new(&self.buffer[range.start as usize..range.end as usize])
    }
}

/// Tokens compared at a time by the C library's comparison, which uses the widest registers there are.
const BLOCK: usize = 256;
/// Tokens compared at a time inside the first block that differs.
const LANES: usize = 16;

/// Returns how many tokens `a` and `b` share from the start.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut same = equal_chunks::<BLOCK>(a, b);
    same += equal_chunks::<LANES>(&a[same..], &b[same..]);
    let tail = a[same..].iter().zip(&b[same..]);
    same + tail.take_while(|(x, y)| x == y).count()
}

fn equal_chunks<const N: usize>(a: &[u32], b: &[u32]) -> usize {
    let chunks = a.chunks_exact(N).zip(b.chunks_exact(N));
    N * chunks.take_while(|(x, y)| x == y).count()
}
