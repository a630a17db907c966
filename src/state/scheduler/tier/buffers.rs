//! Counts the KV store's buffers by use, and limits the share of saves and of fetches.

/// Fetches leave 1/`FETCHES_LEAVE` of the buffers to saves.
const FETCHES_LEAVE: usize = 4;

/// Numbers of block buffers, or of state buffers, by use; the rest is free.
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
        debug_assert!(used <= self.total, "more buffers used than allocated");
        self.total.saturating_sub(used)
    }

    /// Saves use at most half of the buffers: a disk with slow writes delays no fetch.
    pub(super) fn free_for_saves(&self) -> usize {
        let max = self.total.div_ceil(2);
        max.saturating_sub(self.saving).min(self.free())
    }

    /// Fetches leave a quarter of the buffers, and at least one, to saves; the store has the same limit.
    pub(super) fn max_for_fetches(&self) -> usize {
        let for_saves = (self.total / FETCHES_LEAVE).max(1);
        self.total.saturating_sub(for_saves)
    }

    pub(super) fn free_for_fetches(&self) -> usize {
        let used = self.fetching + self.ready;
        self.max_for_fetches().saturating_sub(used).min(self.free())
    }
}
