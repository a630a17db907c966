//! A ring buffer of the last batches, which are sent to subscribers and replayed on request.

use std::collections::VecDeque;
use std::sync::Arc;

/// The largest total size of the batches.
const MAX_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
pub struct RingLimits {
    /// The largest number of batches that can be replayed.
    pub replayed: usize,
    /// The largest number of batches queued for a subscriber; `None` for all in the ring.
    pub waiting: Option<usize>,
}

#[derive(Debug)]
pub struct Batch {
    /// Sequence number, from 0 without gaps.
    pub seq: u64,
    pub payload: Vec<u8>,
    /// The indices of the events whose blocks are in a namespace with a salt or an `extra_key`.
    pub named: Vec<u32>,
}

impl Batch {
    fn n_bytes(&self) -> usize {
        self.payload.len() + size_of_val(&self.named[..])
    }
}

/// The last batches. All subscribers read from the ring, so that a slow subscriber needs no queue.
#[derive(Debug)]
pub struct Ring {
    limits: RingLimits,
    max_bytes: usize,
    batches: VecDeque<Arc<Batch>>,
    n_bytes: usize,
    next: u64,
}

impl Ring {
    pub fn new(limits: RingLimits) -> Self {
        Self {
            limits,
            max_bytes: MAX_BYTES,
            batches: VecDeque::new(),
            n_bytes: 0,
            next: 0,
        }
    }

    /// Appends a batch and drops the oldest ones over the limits.
    pub fn push(&mut self, payload: Vec<u8>, named: Vec<u32>) {
        let batch = Batch {
            seq: self.next,
            payload,
            named,
        };
        self.next += 1;
        self.n_bytes += batch.n_bytes();
        self.batches.push_back(Arc::new(batch));
        let waiting = self.limits.waiting.unwrap_or(usize::MAX);
        let max = self.limits.replayed.max(waiting).max(1);
        while self.batches.len() > max || self.n_bytes > self.max_bytes && self.batches.len() > 1 {
            let oldest = self.batches.pop_front();
            self.n_bytes -= oldest.map_or(0, |batch| batch.n_bytes());
        }
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the oldest batch that a subscriber may still get.
    pub fn first_waiting(&self) -> u64 {
        self.first_of(self.limits.waiting.unwrap_or(usize::MAX))
    }

    /// The number of the oldest batch that can be replayed.
    pub fn first_replayed(&self) -> u64 {
        self.first_of(self.limits.replayed)
    }

    /// The batch with this number, if the ring has it.
    pub fn get(&self, seq: u64) -> Option<Arc<Batch>> {
        let first = self.next - self.batches.len() as u64;
        let index = usize::try_from(seq.checked_sub(first)?).ok()?;
        self.batches.get(index).cloned()
    }

    fn first_of(&self, max: usize) -> u64 {
        self.next - self.batches.len().min(max) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(replayed: usize, waiting: Option<usize>) -> Ring {
        Ring::new(RingLimits { replayed, waiting })
    }

    #[test]
    fn subscribers_and_replays_have_separate_limits() {
        let mut ring = ring(3, Some(5));
        assert_eq!((ring.first_waiting(), ring.first_replayed()), (0, 0));
        for byte in 0..10 {
            ring.push(vec![byte], Vec::new());
        }
        assert_eq!(ring.next(), 10);
        assert_eq!((ring.first_waiting(), ring.first_replayed()), (5, 7));
        let payload = |seq| ring.get(seq).map(|batch| batch.payload.clone());
        assert_eq!(payload(4), None);
        assert_eq!(payload(5), Some(vec![5]));
        assert_eq!(payload(9), Some(vec![9]));
        assert_eq!(payload(10), None);
    }

    #[test]
    fn the_byte_limit_drops_the_oldest_batches_but_never_the_last() {
        let mut ring = Ring {
            max_bytes: 100,
            ..ring(1000, None)
        };
        for _ in 0..50 {
            ring.push(vec![0; 30], Vec::new());
        }
        assert_eq!((ring.first_waiting(), ring.n_bytes), (47, 90));
        ring.push(vec![0; 500], Vec::new());
        assert_eq!((ring.first_waiting(), ring.n_bytes), (50, 500));
        ring.push(vec![0; 1], Vec::new());
        assert_eq!((ring.first_waiting(), ring.n_bytes), (51, 1));
    }

    #[test]
    fn a_replay_limit_of_zero_replays_nothing() {
        let mut ring = ring(0, Some(2));
        ring.push(vec![1], Vec::new());
        assert_eq!((ring.first_replayed(), ring.first_waiting()), (1, 0));
    }
}
