//! The free pages and the free rows of one engine, together.

use std::sync::Arc;

use crate::state::pool::page_pool::PagePool;
use crate::state::pool::pages::{PageSize, PoolLedger};
use crate::state::pool::row_pool::RowPool;

/// Free pages and free rows.
#[derive(Debug)]
pub struct Pools {
    /// Free KV pages (the seeds' token_to_kv_pool_allocator).
    pub pages: PagePool,
    /// Free rows of the page table (the seeds' req_to_token_pool).
    pub rows: RowPool,
}

impl Pools {
    /// Pools in which everything is free.
    pub fn new(n_pages: u32, n_rows: u32, page_size: PageSize, ledger: Arc<PoolLedger>) -> Self {
        Self {
            pages: PagePool::new(n_pages, page_size, ledger),
            rows: RowPool::new(n_rows),
        }
    }
}
