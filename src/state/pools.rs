//! The pools' leg of a plan: take everything back, then grant everything asked for or nothing.

use std::sync::Arc;

use crate::state::page_pool::PagePool;
use crate::state::pages::{PageSize, PoolLedger};
use crate::state::plan::{Grant, Growth, Planned, Reservation, ReserveRequest};
use crate::state::row_pool::RowPool;

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

    /// Runs the second half of a plan.
    pub fn reserve(&mut self, request: ReserveRequest) -> Planned {
        self.pages.free_both(request.returned, request.evicted);
        for row in request.returned_rows {
            self.rows.free(row);
        }
        let demanded = request.demands.iter().map(|demand| demand.pages as usize);
        let wanted = demanded.sum::<usize>() + request.growing.len();
        let rows_wanted = request.demands.iter().filter(|demand| demand.row).count();
        let reservation = if wanted > self.pages.free_pages() || rows_wanted > self.rows.free_rows()
        {
            let missing_pages = wanted.saturating_sub(self.pages.free_pages());
            Reservation::Short { missing_pages }
        } else {
            let mut alloc = |n: usize| {
                let pages = self.pages.alloc(n);
                pages.expect("the sum of the demands was compared with the free pages")
            };
            let grants = request.demands.iter().map(|demand| Grant {
                seq: demand.seq,
                pages: alloc(demand.pages as usize),
                row: demand.row.then(|| {
                    self.rows
                        .alloc()
                        .expect("the rows asked for were compared with the free rows")
                }),
            });
            Reservation::Granted {
                grants: grants.collect(),
                growth: Growth {
                    pages: alloc(request.growing.len()),
                    seqs: request.growing,
                },
            }
        };
        Planned {
            step: request.step,
            reservation,
            verdict: request.verdict,
            free_pages: self.pages.free_pages(),
            free_rows: self.rows.free_rows(),
        }
    }
}
