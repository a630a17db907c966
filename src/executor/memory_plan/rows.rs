//! Plans memory where the reserve grows with the number of running requests.

use super::{MemoryBudget, MemoryPlan, MemoryWish};
use souffleur_base::error::LoadError;

/// The largest default of SGLang for the number of requests that run at once.
const MAX_REQUESTS: u32 = 4096;

impl MemoryPlan {
    /// Like [`Self::new`], with a reserve that grows with the number of requests: `budget` returns the memory budget
    /// for a number of requests. Without `max_running_requests`, finds the largest number of requests, at most 4,096,
    /// that can all run in the pool that the reserve for them leaves.
    ///
    /// # Errors
    /// Those of [`Self::new`], and of `budget`.
    pub fn by_rows(
        wish: MemoryWish,
        budget: impl Fn(u32) -> Result<MemoryBudget, LoadError>,
    ) -> Result<Self, LoadError> {
        let plan = |rows| Self::new(budget(rows)?, wish);
        if let Some(asked) = wish.max_running_requests {
            return plan(asked);
        }
        // A larger reserve leaves a smaller pool, which runs fewer requests.
        let runs_all = |rows| plan(rows).is_ok_and(|plan| plan.max_running_requests == rows);
        let (mut fitting, mut too_many) = (1, MAX_REQUESTS + 1);
        while too_many - fitting > 1 {
            let rows = fitting + (too_many - fitting) / 2;
            if runs_all(rows) {
                fitting = rows
            } else {
                too_many = rows
            }
        }
        plan(fitting)
    }
}
