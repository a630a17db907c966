//! The claims of engines on GPUs, and which of them share a context.
//!
//! All engines of a process share the primary context of a GPU. After an error that ends it, a new context can be made
//! only when all of them have released the old one. So an engine renews a lost context if no other engine has it open;
//! otherwise it is lost for all of them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The right of one engine to open a GPU, and to open it again after the loss of its context.
#[derive(Debug)]
pub struct Claim {
    ordinal: usize,
    loss: Arc<Loss>,
}

/// The text of the error that ended a context which this engine shared with others.
type Loss = OnceLock<String>;

/// A context that an engine has open, until it is dropped.
pub(super) struct Holding {
    ordinal: usize,
    loss: Arc<Loss>,
}

/// The open contexts of all engines: the numbers of the GPUs, and where each engine learns of a loss.
static HOLDINGS: Mutex<Vec<(usize, Arc<Loss>)>> = Mutex::new(Vec::new());

fn holdings() -> MutexGuard<'static, Vec<(usize, Arc<Loss>)>> {
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

    /// As [`Holding::loss`].
    pub(super) fn loss(&self) -> Option<&str> {
        self.loss.get().map(String::as_str)
    }

    pub(super) fn hold(&self) -> Holding {
        holdings().push((self.ordinal, self.loss.clone()));
        Holding {
            ordinal: self.ordinal,
            loss: self.loss.clone(),
        }
    }
}

impl Holding {
    /// Tells all engines that have the context open that it is lost, if there is another one than this.
    pub(super) fn lose(&self, error: &str) {
        let all = holdings();
        let of_context = all.iter().filter(|(ordinal, _)| *ordinal == self.ordinal);
        let of_context: Vec<&Arc<Loss>> = of_context.map(|(_, loss)| loss).collect();
        if of_context.iter().all(|&loss| Arc::ptr_eq(loss, &self.loss)) {
            return;
        }
        for loss in of_context {
            // The first error is the cause.
            let _ = loss.set(error.to_owned());
        }
    }

    /// The error by which the context was lost, if another engine had it open too.
    pub(super) fn loss(&self) -> Option<&str> {
        self.loss.get().map(String::as_str)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut all = holdings();
        let place = all
            .iter()
            .position(|(_, loss)| Arc::ptr_eq(loss, &self.loss));
        if let Some(place) = place {
            all.swap_remove(place);
        }
    }
}
