//! The link of a rank's backend to the other ranks.

use std::sync::Arc;

use super::CudaBackend;
use crate::cpu::ranks::Moment;
use crate::cuda::driver::{DeviceBuffer, DevicePtr, DriverError, Stream};
use crate::cuda::nccl::NcclError;
use crate::cuda::ranks::CudaLink;

/// The other ranks, which have parts of the model too.
pub(super) struct OtherRanks {
    link: CudaLink,
    /// For each number of rows, the order of [`gather_order`].
    orders: DeviceBuffer<u32>,
    stream: Arc<Stream>,
}

impl Drop for OtherRanks {
    /// Ends the collectives, and lets the stream pass those that it has not reached, which keep recordings alive: NCCL
    /// waits for them.
    fn drop(&mut self) {
        self.link.end();
        // An error cannot be handled: the context may be lost.
        let _ = self.stream.synchronize();
    }
}

impl CudaBackend {
    /// Connects the backend to the other ranks, which gather the logits of at most `logit_rows` rows at once.
    ///
    /// # Errors
    /// If memory is exhausted, or the driver reports an error.
    pub fn join(&mut self, link: CudaLink, logit_rows: usize) -> Result<(), DriverError> {
        let n_ranks = link.rank().count();
        let orders = (1..=logit_rows).flat_map(|rows| gather_order(rows, n_ranks));
        let words: Vec<u32> = orders.collect();
        let orders = self.device.alloc(words.len())?;
        self.stream.write(&orders, 0, &words)?;
        let stream = self.stream.clone();
        self.ranks = Some(OtherRanks {
            link,
            orders,
            stream,
        });
        Ok(())
    }

    /// See [`CudaLink::inject_fault`].
    pub fn inject_fault(&self, moment: Moment) {
        if let Some(ranks) = &self.ranks {
            ranks.link.inject_fault(moment);
        }
    }

    /// See [`CudaLink::fail`].
    pub fn fail_ranks(&self, reason: &str) {
        if let Some(ranks) = &self.ranks {
            ranks.link.fail(reason);
        }
    }

    /// See [`CudaLink::ended_by_others`].
    pub fn ended_by_others(&self) -> Option<&str> {
        self.ranks.as_ref()?.link.ended_by_others()
    }

    /// Enqueues a collective, unless an operation has failed before.
    pub(super) fn collect(
        &mut self,
        call: impl FnOnce(&CudaLink, &Stream) -> Result<(), NcclError>,
    ) {
        if self.failure.is_some() {
            return;
        }
        let ranks = self.ranks.as_ref();
        let ranks = ranks.expect("a divided matrix must be in the backend of a rank");
        if let Err(error) = call(&ranks.link, &self.stream) {
            self.failure = Some(error.into());
        }
    }

    /// The address of the order for `rows` rows of logits; null without other ranks.
    pub(super) fn gather_order(&self, rows: usize) -> DevicePtr<u32> {
        let ranks = self.ranks.as_ref();
        let before = rows * rows.saturating_sub(1) / 2 * self.rank.count();
        ranks.map_or(DevicePtr::NULL, |ranks| ranks.orders.at(before))
    }
}

/// The indices of rows' parts, as ranks gather them (all rows of rank 0 first), in the order of rows.
fn gather_order(rows: usize, n_ranks: usize) -> impl Iterator<Item = u32> {
    (0..rows).flat_map(move |row| (0..n_ranks).map(move |rank| (rank * rows + row) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_row_follow_each_other_in_rank_order() {
        let order: Vec<u32> = gather_order(3, 2).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5]);
        assert_eq!(gather_order(1, 4).collect::<Vec<u32>>(), [0, 1, 2, 3]);
    }
}
