//! Ownership of KV pages as values: [`Pages`] owns, [`PageRun`] views, [`NodeLock`] protects from eviction.
//!
//! At any time a page is owned by exactly one of: the free list, a tree node, a sequence's `Pages`, a `Pages` inside a
//! message in flight. None of the owning types is `Clone`; the [`PoolLedger`] counts values that an exit path forgets
//! to return, and panics in debug builds.

mod edge;
mod evicted;
mod ledger;
mod lock;
mod one_by_one;
mod page_size;
mod run;
mod windows;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use edge::{Edge, EdgeBuffer, EdgeTokens};
pub use evicted::EvictedPages;
pub use ledger::PoolLedger;
pub(crate) use lock::LockPart;
pub use lock::NodeLock;
pub use one_by_one::OneByOne;
pub use page_size::PageSize;
pub use run::PageRun;
use souffleur_base::ids::PageId;
pub use windows::{RowWindows, Window, WindowPages, WindowRun};

/// Ids of pages; up to four need no allocation.
pub(crate) type PageIds = SmallVec<[PageId; 4]>;

/// Owned KV pages, in sequence order. The owner must return them to the pool.
#[must_use]
pub struct Pages {
    ids: PageIds,
    ledger: Option<Arc<PoolLedger>>,
}

impl Pages {
    pub fn empty() -> Self {
        Self {
            ids: PageIds::new(),
            ledger: None,
        }
    }

    /// Takes ownership of `ids`. Only the page pool and the tree may call this.
    pub(crate) fn adopt(ids: PageIds, ledger: &Arc<PoolLedger>) -> Self {
        Self {
            ids,
            ledger: Some(ledger.clone()),
        }
    }

    /// Transfers the ids to the caller.
    pub(crate) fn surrender(mut self) -> PageIds {
        std::mem::take(&mut self.ids)
    }

    /// The ids from `at` on: moved if `at` is 0, else copied. The caller must call [`Self::surrender_from`] next.
    pub(crate) fn ids_from(&mut self, at: usize) -> PageIds {
        match at {
            0 => std::mem::take(&mut self.ids),
            _ => PageIds::from_slice(&self.ids[at..]),
        }
    }

    /// Drops the ids from `at` on, whose pages the caller owns from now on. Returns the ledger that counts them.
    pub(crate) fn surrender_from(&mut self, at: usize) -> Option<Arc<PoolLedger>> {
        self.ids.truncate(at);
        match at {
            0 => self.ledger.take(),
            _ => self.ledger.clone(),
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn ids(&self) -> &[PageId] {
        &self.ids
    }

    pub fn append(&mut self, mut other: Self) {
        if self.ledger.is_none() {
            self.ledger = other.ledger.take();
        }
        if self.ids.is_empty() {
            self.ids = std::mem::take(&mut other.ids);
        } else {
            self.ids.append(&mut other.ids);
        }
    }

    /// Keeps the first `at` pages and returns the rest.
    ///
    /// # Panics
    /// If `at > len()`.
    pub fn split_off(&mut self, at: usize) -> Self {
        if at == 0 {
            return self.take();
        }
        let ids = PageIds::from_slice(&self.ids[at..]);
        if ids.is_empty() {
            return Self::empty();
        }
        self.ids.truncate(at);
        let ledger = self.ledger.clone();
        Self { ids, ledger }
    }

    /// Takes the first `n` pages out.
    ///
    /// # Panics
    /// If `n > len()`.
    pub(crate) fn take_front(&mut self, n: usize) -> Self {
        if n == self.ids.len() {
            return self.take();
        }
        let ids = self.ids.drain(..n).collect();
        let ledger = self.ledger.clone();
        Self { ids, ledger }
    }

    pub fn one_by_one(self) -> OneByOne {
        OneByOne::new(self)
    }

    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({})", self.ids.len())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        if let Some(ledger) = &self.ledger {
            ledger.lose_pages(self.ids.len());
        }
    }
}
