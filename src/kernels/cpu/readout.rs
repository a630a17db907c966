//! Divides rows of logits (for sampling), and other items, among the threads.

use super::tensor::{Shared, Tensor};
use super::{CpuBackend, Isa};

pub const LOGIT_COST: usize = 8;

/// Arguments: a lane (a thread's scratch data), the row's index and logits, and the result to write.
pub type ReadRow<'a, L, R> = &'a (dyn Fn(&mut L, usize, &mut [f32], &mut R) + Sync);

impl CpuBackend {
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Calls `read` for each of the first `results.len()` rows of logits, on any thread, with exclusive use of one of
    /// `lanes`.
    ///
    /// # Panics
    /// If `results` is longer than there are rows, or `lanes` is empty.
    pub fn read_rows<L: Send, R: Send>(
        &mut self,
        logits: &mut Tensor,
        lanes: &mut [L],
        results: &mut [R],
        read: ReadRow<'_, L, R>,
    ) {
        let (n_rows, width) = (results.len(), logits.width());
        let (logits, results) = (Shared::new(logits.values_mut()), Shared::new(results));
        let cost = n_rows * width * LOGIT_COST;
        self.pool.for_each_with(lanes, n_rows, cost, &|lane, row| {
            // SAFETY: each row and each result belongs to one item.
            let (logits, out) = unsafe { (logits.part(row * width, width), results.part(row, 1)) };
            read(lane, row, logits, &mut out[0]);
        });
    }

    /// Calls `each` for each item, on any thread. `cost` is in multiply-adds.
    pub fn for_each_of<T: Send>(
        &mut self,
        items: &mut [T],
        cost: usize,
        each: &(dyn Fn(&mut T) + Sync),
    ) {
        let n_items = items.len();
        let items = Shared::new(items);
        self.pool.for_each(n_items, cost, &|index| {
            // SAFETY: each item is passed to one call.
            each(&mut unsafe { items.part(index, 1) }[0]);
        });
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }
}
