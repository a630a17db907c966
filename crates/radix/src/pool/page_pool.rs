//! The free list of KV pages (SGLang's `token_to_kv_pool_allocator`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::pool::pages::{EvictedPages, PageIds, PageSize, Pages, PoolLedger};
use souffleur_base::ids::PageId;

/// Owns every free page. Pages are `1..=n_pages`; page 0 is the dummy of padded rows.
///
/// Grants come from the front of the list. Freed pages return to the front, single-token pages to the back.
pub struct PagePool {
    free: VecDeque<PageId>,
    granted: BitSet,
    n_pages: usize,
    page_size: PageSize,
    double_frees: u64,
    ledger: Arc<PoolLedger>,
}

impl PagePool {
    /// Makes a pool of `n_pages` free pages. `ledger` counts pages that are dropped instead of freed.
    ///
    /// # Panics
    /// If the ledger has another page size.
    pub fn new(n_pages: u32, page_size: PageSize, ledger: Arc<PoolLedger>) -> Self {
        assert_eq!(
            ledger.page_size(),
            page_size,
            "the ledger must have the pool's page size"
        );
        Self {
            free: (1..=n_pages).map(PageId::new).collect(),
            granted: BitSet::new(n_pages as usize + 1),
            n_pages: n_pages as usize,
            page_size,
            double_frees: 0,
            ledger,
        }
    }

    /// Grants exactly `n` pages, or nothing: `None` leaves the pool as it was.
    pub fn alloc(&mut self, n: usize) -> Option<Pages> {
        if n == 0 {
            return Some(Pages::empty());
        }
        if n > self.free.len() {
            return None;
        }
        if n == 1 {
            let id = self.free.pop_front()?;
            self.granted.set(id.index(), true);
            return Some(Pages::adopt(PageIds::from_slice(&[id]), &self.ledger));
        }
        let mut ids = PageIds::new();
        let (front, back) = self.free.as_slices();
        ids.extend_from_slice(&front[..n.min(front.len())]);
        ids.extend_from_slice(&back[..n - ids.len()]);
        self.free.drain(..n);
        for id in &ids {
            self.granted.set(id.index(), true);
        }
        Some(Pages::adopt(ids, &self.ledger))
    }

    /// Takes pages back.
    ///
    /// # Panics
    /// In debug builds, if a page is free already or not one of this pool's. Release builds ignore such a page
    /// and count it in [`double_frees`](Self::double_frees).
    pub fn free(&mut self, pages: Pages) {
        let mut ids = pages.surrender();
        ids.retain(|id| self.take_back(*id));
        if self.page_size == PageSize::ONE {
            self.free.extend(ids);
            return;
        }
        for id in ids.into_iter().rev() {
            self.free.push_front(id);
        }
    }

    pub fn free_evicted(&mut self, evicted: EvictedPages) {
        if self.page_size != PageSize::ONE {
            return self.free(evicted.into());
        }
        self.free.reserve(evicted.len());
        evicted.surrender(|ids| {
            for id in ids {
                if self.take_back(id) {
                    self.free.push_back(id);
                }
            }
        });
    }

    /// Frees both, in the order of a single list with the evicted pages last.
    pub fn free_both(&mut self, pages: Pages, evicted: EvictedPages) {
        if self.page_size == PageSize::ONE {
            self.free(pages);
            self.free_evicted(evicted);
        } else {
            self.free_evicted(evicted);
            self.free(pages);
        }
    }

    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    pub fn free_tokens(&self) -> usize {
        self.page_size.tokens_in(self.free.len())
    }

    pub fn total_pages(&self) -> usize {
        self.n_pages
    }

    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The free pages, next grant first.
    pub fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.free.iter().copied()
    }

    /// Number of returned pages that were not granted: 0 unless there is a bug.
    pub fn double_frees(&self) -> u64 {
        self.double_frees
    }

    fn take_back(&mut self, id: PageId) -> bool {
        let was_granted = id.index() <= self.n_pages && self.granted.get(id.index());
        if was_granted {
            self.granted.set(id.index(), false);
            return true;
        }
        self.double_frees += 1;
        debug_assert!(was_granted, "page {id} was freed but not allocated");
        false
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, total, size) = (self.free.len(), self.n_pages, self.page_size);
        write!(f, "PagePool({free} of {total} pages of {size} free)")
    }
}

struct BitSet(Vec<u64>);

impl BitSet {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn get(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    fn set(&mut self, index: usize, value: bool) {
        let mask = 1 << (index % 64);
        if value {
            self.0[index / 64] |= mask
        } else {
            self.0[index / 64] &= !mask
        }
    }
}
