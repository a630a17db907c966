//! The free list of window pages: the KV pages of sliding-window layers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pool::page_pool::PagePool;
use crate::pool::pages::{PageSize, PoolLedger, Window, WindowPages};
use souffleur_base::ids::PageId;

/// The window of a model's sliding-window layers, and the size of the pool of their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowLimits {
    /// Tokens that a query attends to, including its own.
    pub tokens: usize,
    /// Pages that can be granted, ids `1..=total_pages`.
    pub total_pages: usize,
}

impl WindowLimits {
    pub fn window(&self, page_size: PageSize) -> Window {
        Window {
            tokens: self.tokens,
            page_size,
        }
    }
}

/// Owns every free window page.
#[derive(Debug)]
pub struct WindowPool(PagePool);

impl WindowPool {
    pub fn new(n_pages: u32, page_size: PageSize, ledger: Arc<PoolLedger>) -> Self {
        Self(PagePool::new(n_pages, page_size, ledger))
    }

    /// Whether the pool has any pages. If so, every KV page of a sequence is granted together with a window page.
    pub fn is_used(&self) -> bool {
        self.0.total_pages() > 0
    }

    /// Grants exactly `n` pages, or nothing.
    pub fn alloc(&mut self, n: usize) -> Option<WindowPages> {
        self.0.alloc(n).map(WindowPages::of)
    }

    pub fn free(&mut self, pages: WindowPages) {
        if !pages.is_empty() {
            self.0.free(pages.into_pages());
        }
    }

    pub fn free_pages(&self) -> usize {
        self.0.free_pages()
    }

    pub fn total_pages(&self) -> usize {
        self.0.total_pages()
    }

    pub fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.0.iter()
    }

    pub fn double_frees(&self) -> u64 {
        self.0.double_frees()
    }
}
