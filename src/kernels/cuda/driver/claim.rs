//! The claims of engines on GPUs, and which executors share a context.
//!
//! All engines of a process share the primary context of a GPU, and so do the replicas of one engine. After an error
//! that ends the context, a new one can be made only when all of them have released the old one. The replicas of an
//! engine do so: each of them learns of the loss, and the first that opens the GPU again waits for the others. A context
//! that several engines have open is lost for all of them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The longest wait for the replicas of an engine to release a lost context. Their steps fail at once.
const LONGEST_RELEASE: Duration = Duration::from_secs(30);

/// The right of one engine to open a GPU, once for each replica there, and again after the loss of its context.
#[derive(Debug)]
pub struct Claim {
    ordinal: usize,
    loss: Arc<Loss>,
}

/// The text of the error that ended a context.
type Loss = OnceLock<String>;

/// A context that an executor has open, until it is dropped.
pub(super) struct Holding(Entry);

#[derive(Clone)]
struct Entry {
    /// The number of the GPU.
    ordinal: usize,
    /// Of the claim: the loss of a context that this engine shared with others.
    of_engine: Arc<Loss>,
    /// The loss of this context, if another executor had it open too.
    own: Arc<Loss>,
}

/// The open contexts of all engines.
static HOLDINGS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// Notified when an entry is removed.
static RELEASED: Condvar = Condvar::new();

fn holdings() -> MutexGuard<'static, Vec<Entry>> {
    HOLDINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Claim {
    pub fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            loss: Arc::default(),
        }
    }

    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The error by which a context was lost that other engines had open too.
    pub(super) fn loss(&self) -> Option<&str> {
        self.loss.get().map(String::as_str)
    }

    pub(super) fn hold(&self) -> Holding {
        let entry = Entry {
            ordinal: self.ordinal,
            of_engine: self.loss.clone(),
            own: Arc::default(),
        };
        holdings().push(entry.clone());
        Holding(entry)
    }

    /// Waits until all executors of this engine have released a context that was lost. False if this takes too long.
    pub(super) fn await_release(&self) -> bool {
        let is_held = |all: &mut Vec<Entry>| all.iter().any(|entry| self.has_lost(entry));
        let waited = RELEASED.wait_timeout_while(holdings(), LONGEST_RELEASE, is_held);
        let (_holdings, result) = waited.unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }

    fn has_lost(&self, entry: &Entry) -> bool {
        let is_own = entry.ordinal == self.ordinal && Arc::ptr_eq(&entry.of_engine, &self.loss);
        is_own && entry.own.get().is_some()
    }
}

impl Holding {
    /// Tells all executors that have the context open that it is lost. False if there is none but this one.
    pub(super) fn lose(&self, error: &str) -> bool {
        let all = holdings();
        let of_context = all.iter().filter(|entry| entry.ordinal == self.0.ordinal);
        let of_context: Vec<&Entry> = of_context.collect();
        let is_shared = of_context.len() > 1;
        let mut engines = of_context.iter().map(|entry| &entry.of_engine);
        let is_of_engines = engines.any(|engine| !Arc::ptr_eq(engine, &self.0.of_engine));
        for entry in of_context.iter().filter(|_| is_shared) {
            // The first error is the cause.
            let _ = entry.own.set(error.to_owned());
            if is_of_engines {
                let _ = entry.of_engine.set(error.to_owned());
            }
        }
        is_shared
    }

    /// The error by which the context was lost, if another executor had it open too.
    pub(super) fn loss(&self) -> Option<&str> {
        self.0.own.get().map(String::as_str)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut all = holdings();
        let place = all
            .iter()
            .position(|entry| Arc::ptr_eq(&entry.own, &self.0.own));
        if let Some(place) = place {
            all.swap_remove(place);
        }
        RELEASED.notify_all();
    }
}
