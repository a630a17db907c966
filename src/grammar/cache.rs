//! LRU cache of compiled grammars, with slots for compilations in flight, and permits that limit their number.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::state::Template;
use souffleur_base::error::RequestError;

/// Interval at which a waiting thread polls whether its request was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A hash of a grammar's source.
pub(super) type Key = [u8; 32];

/// A compiled grammar, or the reason why it cannot be compiled.
pub(super) type Compiled = Result<Arc<Template>, RequestError>;

/// The cache slot of one grammar, shared by all requests for it.
#[derive(Default)]
pub(super) struct Slot {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
enum Progress {
    /// The compilation has not begun.
    #[default]
    Queued,
    Compiling {
        since: Instant,
    },
    Ended(Compiled),
}

/// Why a wait ended without a result.
pub(super) enum Unready {
    Cancelled,
    TimedOut,
}

impl Slot {
    pub(super) fn begin(&self) {
        let since = Instant::now();
        *lock(&self.progress) = Progress::Compiling { since };
    }

    pub(super) fn end(&self, compiled: Compiled) {
        *lock(&self.progress) = Progress::Ended(compiled);
        self.changed.notify_all();
    }

    /// Waits for the grammar, at most `timeout` after its compilation began.
    pub(super) fn wait(
        &self,
        timeout: Duration,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Compiled, Unready> {
        let mut progress = lock(&self.progress);
        loop {
            match &*progress {
                Progress::Ended(compiled) => return Ok(compiled.clone()),
                _ if is_cancelled() => return Err(Unready::Cancelled),
                Progress::Compiling { since } if since.elapsed() >= timeout => {
                    return Err(Unready::TimedOut);
                }
                Progress::Queued | Progress::Compiling { .. } => {}
            }
            progress = poll_wait(&self.changed, progress);
        }
    }
}

pub(super) struct Slots {
    /// Ordered by last use, the oldest first.
    used: Vec<(Key, Arc<Slot>)>,
    limit: usize,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            used: Vec::new(),
            limit: limit.max(1),
        }
    }

    pub(super) fn find(&mut self, key: &Key) -> Option<Arc<Slot>> {
        let at = self.used.iter().position(|(stored, _)| stored == key)?;
        let entry = self.used.remove(at);
        let slot = entry.1.clone();
        self.used.push(entry);
        Some(slot)
    }

    /// Adds a slot. At the limit, evicts the least recently used slot.
    pub(super) fn add(&mut self, key: Key) -> Arc<Slot> {
        if self.used.len() >= self.limit {
            self.used.remove(0);
        }
        let slot = Arc::new(Slot::default());
        self.used.push((key, slot.clone()));
        slot
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.used.retain(|(stored, _)| stored != key);
    }
}

pub(super) struct Permits {
    taken: Mutex<usize>,
    freed: Condvar,
    limit: usize,
}

impl Permits {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            taken: Mutex::new(0),
            freed: Condvar::new(),
            limit: limit.max(1),
        }
    }

    /// Waits for a free permit, at most `timeout`.
    pub(super) fn take(
        self: &Arc<Self>,
        timeout: Duration,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Permit, Unready> {
        let since = Instant::now();
        let mut taken = lock(&self.taken);
        while *taken >= self.limit {
            if is_cancelled() {
                return Err(Unready::Cancelled);
            }
            if since.elapsed() >= timeout {
                return Err(Unready::TimedOut);
            }
            taken = poll_wait(&self.freed, taken);
        }
        *taken += 1;
        Ok(Permit(self.clone()))
    }
}

/// The right to compile, released on drop.
pub(super) struct Permit(Arc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.freed.notify_all();
    }
}

/// Locks despite poisoning: no code here can panic between two writes, so the value is consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn poll_wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    let woken = changed.wait_timeout(guard, POLL_INTERVAL);
    woken.unwrap_or_else(PoisonError::into_inner).0
}
