//! Memory for a rank's parts of blocks: reused, and in memory pages of its own, so that a device can pin it.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The size of memory pages. Where pages are larger, a device may refuse to pin neighbours, and copies them more slowly.
const PAGE_BYTES: usize = 4096;

/// The free parts of a rank. Their memory is freed with the pool, and not earlier.
#[derive(Clone, Default)]
pub(super) struct PartPool(Arc<Mutex<Vec<Box<[u8]>>>>);

/// A part of a block; its memory returns to the pool when it is dropped.
pub(super) struct Part {
    /// Some bytes more than the pages; empty once the part has lost it.
    memory: Box<[u8]>,
    len: usize,
    pool: PartPool,
}

impl PartPool {
    /// A part of `len` bytes with arbitrary content.
    pub(super) fn take(&self, len: usize) -> Part {
        let n_bytes = page_bytes(len) + PAGE_BYTES;
        let reused = {
            let mut free = self.free();
            let fitting = free.iter().position(|memory| memory.len() == n_bytes);
            fitting.map(|index| free.swap_remove(index))
        };
        Part {
            memory: reused.unwrap_or_else(|| vec![0; n_bytes].into_boxed_slice()),
            len,
            pool: self.clone(),
        }
    }

    /// A copy of `bytes`.
    pub(super) fn copy(&self, bytes: &[u8]) -> Part {
        let mut part = self.take(bytes.len());
        part.bytes_mut().copy_from_slice(bytes);
        part
    }

    /// Keeps the memory of all parts allocated.
    pub(super) fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }

    fn free(&self) -> MutexGuard<'_, Vec<Box<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    pub(super) fn bytes(&self) -> &[u8] {
        let start = self.start();
        &self.memory[start..start + self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.start();
        &mut self.memory[start..start + self.len]
    }

    /// The whole pages that begin with the bytes, and that hold no other data.
    pub(super) fn pages_mut(&mut self) -> &mut [u8] {
        let start = self.start();
        &mut self.memory[start..start + page_bytes(self.len)]
    }

    /// Leaks the memory, which a failed device may still use.
    pub(super) fn leak(mut self) {
        let _ = Box::leak(std::mem::take(&mut self.memory));
    }

    pub(super) fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.pool.owner()
    }

    fn start(&self) -> usize {
        self.memory.as_ptr().align_offset(PAGE_BYTES)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if !memory.is_empty() {
            self.pool.free().push(memory);
        }
    }
}

fn page_bytes(len: usize) -> usize {
    len.next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_reused_and_begin_with_a_page() {
        let pool = PartPool::default();
        let mut part = pool.copy(&[1, 2, 3]);
        let address = part.bytes().as_ptr();
        assert_eq!(part.bytes(), [1, 2, 3]);
        assert_eq!(part.pages_mut().len(), PAGE_BYTES);
        assert!(address.addr().is_multiple_of(PAGE_BYTES));
        let other = pool.take(3);
        assert_ne!(other.bytes().as_ptr(), address);
        drop(part);
        assert_eq!(pool.copy(&[4; 5]).bytes().as_ptr(), address);
        let larger = pool.take(PAGE_BYTES + 1);
        assert_ne!(larger.bytes().as_ptr(), address);
        pool.take(5).leak();
        assert_ne!(pool.take(5).bytes().as_ptr(), address);
    }
}
