//! Causal and sliding-window masks: the keys of a block that a query sees.

use std::ops::Range;

pub(super) const BLOCK: usize = 128;
pub(super) const SPAN: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyRange {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl KeyRange {
    /// The part of the block at `start` that `positions` cover.
    #[inline(always)]
    pub(super) fn new(positions: Range<usize>, start: usize) -> Self {
        Self {
            start: positions.start.saturating_sub(start).min(BLOCK) as u32,
            end: positions.end.saturating_sub(start).min(BLOCK) as u32,
        }
    }

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.start >= self.end
    }

    #[inline(always)]
    pub(super) fn is_all(self) -> bool {
        (self.start, self.end) == (0, BLOCK as u32)
    }

    #[inline(always)]
    pub(super) fn contains(self, key: usize) -> bool {
        (self.start as usize..self.end as usize).contains(&key)
    }
}
