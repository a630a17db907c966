//! Bounds the number of fetches at once.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A fetch in progress; its place is free when it is dropped.
#[derive(Debug)]
pub(super) struct Slot(Arc<Slots>);

impl Slots {
    pub(super) fn new(n: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new(n),
            freed: Condvar::new(),
        })
    }

    /// Waits for a slot; `None` if there is none by the deadline.
    pub(super) fn take(self: &Arc<Self>, deadline: Instant) -> Option<Slot> {
        // A number is whole whenever the lock is released.
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.freed.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Some(Slot(self.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slot_is_free_again_when_it_is_dropped() {
        let slots = Slots::new(1);
        let now = Instant::now();
        let first = slots.take(now).expect("one slot");
        assert!(slots.take(now).is_none());
        let waiting = slots.clone();
        let waiting = std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(60);
            waiting.take(deadline).is_some()
        });
        drop(first);
        assert!(waiting.join().expect("no panic"));
    }
}
