//! Device memory of activations: an arena that allocates without calling the driver.
//!
//! All work on activations is enqueued on one stream, so a part may be reused while kernels that use its previous
//! content are pending: the kernels of its next owner run after them.

use std::sync::{Arc, Mutex, MutexGuard};

/// Enough for the widest load, and no two parts share a cache line.
const ALIGNMENT: usize = 256;

#[derive(Clone)]
pub struct Arena {
    free: Arc<Mutex<FreeList>>,
}

/// A part of an arena; dropping a part returns it to the arena.
pub struct Part {
    offset: usize,
    bytes: usize,
    arena: Arena,
}

struct FreeList {
    /// Ranges `(offset, bytes)` in ascending order; no two touch.
    ranges: Vec<(usize, usize)>,
}

impl Arena {
    pub fn new(bytes: usize) -> Self {
        // A decoder holds a dozen parts at once, so gaps are few.
        let mut ranges = Vec::with_capacity(64);
        ranges.push((0, bytes / ALIGNMENT * ALIGNMENT));
        let free = FreeList { ranges };
        Self {
            free: Arc::new(Mutex::new(free)),
        }
    }

    pub fn rounded(bytes: usize) -> usize {
        bytes.max(1).next_multiple_of(ALIGNMENT)
    }

    /// Takes the first gap that is large enough; `None` if there is none.
    pub fn take(&self, bytes: usize) -> Option<Part> {
        let bytes = Self::rounded(bytes);
        let mut free = self.lock();
        let fitting = free.ranges.iter().position(|range| range.1 >= bytes)?;
        let (offset, len) = free.ranges[fitting];
        if len == bytes {
            free.ranges.remove(fitting);
        } else {
            free.ranges[fitting] = (offset + bytes, len - bytes);
        }
        Some(Part {
            offset,
            bytes,
            arena: self.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, FreeList> {
        self.free
            .lock()
            .expect("no thread may panic while it holds the lock")
    }

    fn give_back(&self, offset: usize, bytes: usize) {
        let mut free = self.lock();
        let after = free.ranges.partition_point(|range| range.0 < offset);
        let touches_after = free
            .ranges
            .get(after)
            .is_some_and(|range| range.0 == offset + bytes);
        let touches_before = after > 0 && {
            let (start, len) = free.ranges[after - 1];
            start + len == offset
        };
        match (touches_before, touches_after) {
            (true, true) => {
                free.ranges[after - 1].1 += bytes + free.ranges[after].1;
                free.ranges.remove(after);
            }
            (true, false) => free.ranges[after - 1].1 += bytes,
            (false, true) => {
                free.ranges[after].0 = offset;
                free.ranges[after].1 += bytes;
            }
            (false, false) => free.ranges.insert(after, (offset, bytes)),
        }
    }
}

impl Part {
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.arena.give_back(self.offset, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_never_overlap_and_are_all_returned() {
        let arena = Arena::new(64 * ALIGNMENT + 3);
        let mut random = fastrand::Rng::with_seed(7);
        let mut parts: Vec<Part> = Vec::new();
        for _ in 0..2000 {
            match random.bool() {
                true => parts.extend(arena.take(random.usize(0..6 * ALIGNMENT))),
                false if parts.is_empty() => {}
                false => drop(parts.swap_remove(random.usize(0..parts.len()))),
            }
            let mut spans: Vec<_> = parts.iter().map(|p| (p.offset, p.bytes)).collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
            assert!(spans.iter().all(|span| span.0 % ALIGNMENT == 0));
            assert!(
                spans
                    .last()
                    .is_none_or(|span| span.0 + span.1 <= 64 * ALIGNMENT)
            );
        }
        parts.clear();
        assert!(arena.take(65 * ALIGNMENT).is_none());
        assert_eq!(
            arena.take(64 * ALIGNMENT).map(|part| part.offset()),
            Some(0)
        );
    }
}
