//! Who has which buffer of the store, and how many more saves and fetches may take.

/// Of the buffers, fetches leave one in so many to saves.
const FETCHES_LEAVE: usize = 4;

/// Holders of the buffers of blocks, or of states; those that nobody has are free.
#[derive(Clone, Copy, Default)]
pub(super) struct Buffers {
    pub(super) total: usize,
    pub(super) saving: usize,
    pub(super) fetching: usize,
    pub(super) ready: usize,
}

impl Buffers {
    pub(super) fn new(total: usize) -> Self {
        Self {
            total,
            ..Self::default()
        }
    }

    pub(super) fn free(&self) -> usize {
        let used = self.saving + self.fetching + self.ready;
        debug_assert!(used <= self.total, "a buffer is somebody's once");
        self.total.saturating_sub(used)
    }

    /// Half of the buffers are for saves at most: a disk that is slow to write holds up no fetch.
    pub(super) fn room_to_save(&self) -> usize {
        let most = self.total.div_ceil(2);
        most.saturating_sub(self.saving).min(self.free())
    }

    /// Fetches leave a quarter to saves, and one at least, as the store has it.
    pub(super) fn most_to_fetch(&self) -> usize {
        let left = (self.total / FETCHES_LEAVE).max(1);
        self.total.saturating_sub(left)
    }

    pub(super) fn room_to_fetch(&self) -> usize {
        let used = self.fetching + self.ready;
        self.most_to_fetch().saturating_sub(used).min(self.free())
    }
}
