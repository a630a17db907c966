//! The scheduler's view of memory, as of the last plan's answers from pools and tree.

use std::sync::Arc;

use super::SchedulerLimits;
use super::stats::EngineStats;
use crate::plan::CacheCounts;
use crate::pool::pages::{PageSize, PoolLedger};

pub(super) struct Memory {
    page_size: PageSize,
    total_pages: usize,
    total_rows: usize,
    free_pages: usize,
    free_rows: usize,
    total_states: usize,
    free_states: usize,
    total_windows: usize,
    free_windows: usize,
    cache: CacheCounts,
    census: Census,
    ledger: Arc<PoolLedger>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Census {
    /// Tokens of pages private to sequences.
    pub(super) private_tokens: usize,
    /// Prompt and output tokens of running sequences.
    pub(super) decode_tokens: usize,
    pub(super) states: usize,
    pub(super) rows: usize,
    /// Window pages private to sequences.
    pub(super) windows: usize,
}

impl Memory {
    pub(super) fn new(limits: &SchedulerLimits, ledger: Arc<PoolLedger>) -> Self {
        let total_windows = limits.windows.map_or(0, |windows| windows.total_pages);
        let total_states = limits.states.map_or(0, |states| states.total_slots);
        Self {
            page_size: ledger.page_size(),
            total_pages: limits.total_pages,
            total_rows: limits.total_rows,
            free_pages: limits.total_pages,
            free_rows: limits.total_rows,
            total_states,
            free_states: total_states,
            total_windows,
            free_windows: total_windows,
            cache: CacheCounts::default(),
            census: Census::default(),
            ledger,
        }
    }

    #[inline]
    pub(super) fn free_pages(&self) -> usize {
        self.free_pages
    }

    #[inline]
    pub(super) fn free_rows(&self) -> usize {
        self.free_rows
    }

    /// Cached pages that the last plan could have evicted.
    pub(super) fn evictable_pages(&self) -> usize {
        self.page_size.full_pages(self.cache.evictable_tokens)
    }

    #[inline]
    pub(super) fn protected_tokens(&self) -> usize {
        self.cache.protected_tokens
    }

    #[inline]
    pub(super) fn set_free(
        &mut self,
        (pages, windows): (usize, usize),
        rows: usize,
        states: usize,
    ) {
        self.free_pages = pages;
        self.free_windows = windows;
        self.free_rows = rows;
        self.free_states = states;
    }

    #[inline]
    pub(super) fn free_windows(&self) -> usize {
        self.free_windows
    }

    #[inline]
    pub(super) fn free_states(&self) -> usize {
        self.free_states
    }

    /// The memory that sequences held at the last plan.
    pub(super) fn census(&self) -> Census {
        self.census
    }

    #[inline]
    pub(super) fn set_cache(&mut self, cache: CacheCounts) {
        self.cache = cache;
    }

    /// Updates the memory that sequences hold. Returns true if all pages are accounted for (`free + evictable +
    /// protected + private == total`), and likewise all window pages and all states (`free + cached + held == total`).
    #[inline]
    pub(super) fn set_census(&mut self, census: Census) -> bool {
        self.census = census;
        let accounted = self.page_size.tokens_in(self.free_pages)
            + self.cache.evictable_tokens
            + self.cache.protected_tokens
            + census.private_tokens;
        let states = self.free_states + self.cache.states + census.states;
        let windows = self.free_windows
            + self.cache.evictable_windows
            + self.cache.protected_windows
            + census.windows;
        accounted == self.page_size.tokens_in(self.total_pages)
            && states == self.total_states
            && windows == self.total_windows
    }

    #[inline]
    pub(super) fn add_counts(&self, stats: EngineStats) -> EngineStats {
        EngineStats {
            decode_tokens: self.census.decode_tokens,
            total_tokens: self.page_size.tokens_in(self.total_pages),
            page_size: self.page_size.get(),
            free_tokens: self.page_size.tokens_in(self.free_pages),
            evictable_tokens: self.cache.evictable_tokens,
            protected_tokens: self.cache.protected_tokens,
            private_tokens: self.census.private_tokens,
            total_rows: self.total_rows,
            free_rows: self.free_rows,
            total_states: self.total_states,
            free_states: self.free_states,
            cached_states: self.cache.states,
            total_windows: self.total_windows,
            free_windows: self.free_windows,
            evictable_windows: self.cache.evictable_windows,
            protected_windows: self.cache.protected_windows,
            private_windows: self.census.windows,
            lost_pages: self.ledger.lost_pages()
                + self.ledger.lost_locks()
                + self.ledger.lost_states(),
            ..stats
        }
    }
}
