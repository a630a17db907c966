//! Counts pages, locks and states that were dropped instead of returned to their pool.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::PageSize;

/// Counts the leaks of one pool. The ledger is closed before the pool is torn down: later drops are not leaks.
#[derive(Debug)]
pub struct PoolLedger {
    page_size: PageSize,
    lost_pages: AtomicU64,
    lost_locks: AtomicU64,
    lost_states: AtomicU64,
    closed: AtomicBool,
}

impl PoolLedger {
    pub const fn new(page_size: PageSize) -> Self {
        Self {
            page_size,
            lost_pages: AtomicU64::new(0),
            lost_locks: AtomicU64::new(0),
            lost_states: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    pub const fn page_size(&self) -> PageSize {
        self.page_size
    }

    pub fn lost_pages(&self) -> u64 {
        self.lost_pages.load(Ordering::Relaxed)
    }

    pub fn lost_locks(&self) -> u64 {
        self.lost_locks.load(Ordering::Relaxed)
    }

    pub fn lost_states(&self) -> u64 {
        self.lost_states.load(Ordering::Relaxed)
    }

    /// Closes the ledger: from now on nothing counts as lost.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn lose_pages(&self, count: usize) {
        self.record(&self.lost_pages, count as u64, "pages");
    }

    pub(super) fn lose_lock(&self) {
        self.record(&self.lost_locks, 1, "node locks");
    }

    pub(in crate::pool) fn lose_state(&self) {
        self.record(&self.lost_states, 1, "states");
    }

    fn record(&self, counter: &AtomicU64, count: u64, what: &str) {
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        counter.fetch_add(count, Ordering::Relaxed);
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("leaked {count} {what}: dropped without being returned to the pool");
        }
    }
}
