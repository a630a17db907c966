//! The memory pools of one engine: free pages, rows, states and window pages.

use std::sync::Arc;

use crate::pool::page_pool::PagePool;
use crate::pool::pages::{PageSize, PoolLedger};
use crate::pool::row_pool::RowPool;
use crate::pool::state_pool::StatePool;
use crate::pool::window_pool::WindowPool;

#[derive(Debug)]
pub struct Pools {
    /// Free KV pages (SGLang's token_to_kv_pool_allocator).
    pub pages: PagePool,
    /// Free rows of the page table (SGLang's req_to_token_pool).
    pub rows: RowPool,
    /// Free state slots; none if no layer has states.
    pub states: StatePool,
    /// Free window pages; none if sliding-window layers keep all tokens.
    pub windows: WindowPool,
}

impl Pools {
    pub fn new(n_pages: u32, n_rows: u32, page_size: PageSize, ledger: Arc<PoolLedger>) -> Self {
        Self {
            pages: PagePool::new(n_pages, page_size, ledger.clone()),
            rows: RowPool::new(n_rows),
            states: StatePool::new(0, ledger.clone()),
            windows: WindowPool::new(0, page_size, ledger),
        }
    }

    pub fn with_windows(self, n_pages: u32, ledger: Arc<PoolLedger>) -> Self {
        let page_size = self.pages.page_size();
        Self {
            windows: WindowPool::new(n_pages, page_size, ledger),
            ..self
        }
    }

    pub fn with_states(self, n_slots: u32, ledger: Arc<PoolLedger>) -> Self {
        Self {
            states: StatePool::new(n_slots, ledger),
            ..self
        }
    }
}
