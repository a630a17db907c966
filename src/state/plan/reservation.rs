//! The pools' leg of a plan: take everything back, then grant everything asked for or nothing.

use super::{Grant, Growth, Planned, Reservation, ReserveRequest};
use crate::state::pool::pools::Pools;

impl Pools {
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
