//! Signs of life of a thread, which another thread watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the signs of life of one thread, and says whether the thread has work. Clones share the count.
///
/// Every call is one or two relaxed atomic operations: it reads no clock and allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Beat(Arc<Signs>);

#[derive(Debug, Default)]
struct Signs {
    beats: AtomicU64,
    owes: AtomicBool,
}

impl Beat {
    /// Shows that the thread makes progress.
    pub fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// The thread has work from now on, and must beat.
    pub fn work(&self) {
        self.beat();
        self.0.owes.store(true, Ordering::Relaxed);
    }

    /// The thread waits for work from now on, and need not beat.
    pub fn rest(&self) {
        self.0.owes.store(false, Ordering::Relaxed);
    }

    /// The number of beats so far.
    pub fn count(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed)
    }

    pub fn owes_work(&self) -> bool {
        self.0.owes.load(Ordering::Relaxed)
    }
}
