//! The list of viewers, through which they and the sampler meet.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::web::Bytes;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{Notify, watch};

use crate::error::ApiError;

/// The largest number of viewers.
pub(super) const MAX_VIEWERS: usize = 8;
/// The largest number of a viewer's events that wait to be sent.
const QUEUED_EVENTS: usize = 4;

/// The viewers of one server.
pub(crate) struct Viewers {
    entries: Mutex<Entries>,
    /// Wakes the sampler: a viewer has come or gone, or the server's state has changed.
    changed: Notify,
    ended: watch::Sender<bool>,
}

#[derive(Default)]
struct Entries {
    n_viewers: usize,
    joining: Vec<Newcomer>,
    is_sampled: bool,
}

/// A viewer that the sampler does not know yet.
pub(super) struct Newcomer {
    pub(super) events: Sender<Bytes>,
    pub(super) hz: u32,
    pub(super) is_admin: bool,
}

impl Default for Viewers {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
            changed: Notify::new(),
            ended: watch::Sender::new(false),
        }
    }
}

impl Viewers {
    /// Adds a viewer, for the first one with `start_sampler`. Returns the viewer's events.
    ///
    /// # Errors
    /// [`MAX_VIEWERS`] are watching, or the sampler's thread cannot be started.
    pub(super) fn join(
        self: &Arc<Self>,
        hz: u32,
        is_admin: bool,
        start_sampler: impl FnOnce() -> io::Result<()>,
    ) -> Result<(Receiver<Bytes>, Seat), ApiError> {
        let mut entries = self.lock();
        if entries.n_viewers >= MAX_VIEWERS {
            return Err(ApiError::too_many_viewers(MAX_VIEWERS));
        }
        if !entries.is_sampled {
            start_sampler().map_err(|error| ApiError::no_sampler(&error))?;
            entries.is_sampled = true;
        }
        let (sender, events) = mpsc::channel(QUEUED_EVENTS);
        entries.joining.push(Newcomer {
            events: sender,
            hz,
            is_admin,
        });
        entries.n_viewers += 1;
        drop(entries);
        self.wake();
        let viewers = self.clone();
        Ok((events, Seat { viewers }))
    }

    /// For the sampler, which has `n_present` viewers: the new ones. `None` if there are neither: the sampler must end,
    /// and the next viewer starts another one.
    pub(super) fn admit(&self, n_present: usize) -> Option<Vec<Newcomer>> {
        let mut entries = self.lock();
        let joining = std::mem::take(&mut entries.joining);
        entries.is_sampled = n_present > 0 || !joining.is_empty();
        entries.is_sampled.then_some(joining)
    }

    /// For a sampler that panics: its viewers' streams end, and the next viewer starts another sampler.
    pub(super) fn abandon(&self) {
        let mut entries = self.lock();
        entries.joining.clear();
        entries.is_sampled = false;
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Wakes the sampler.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Ends all streams, now and later.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
        self.wake();
    }

    pub(super) fn end_signal(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A viewer's seat, free again when it is dropped.
pub(super) struct Seat {
    viewers: Arc<Viewers>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.viewers.lock().n_viewers -= 1;
        self.viewers.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_sampler_serves_all_viewers_and_ends_with_the_last() {
        let viewers: Arc<Viewers> = Arc::default();
        let n_started = Cell::new(0);
        let join = || {
            let start_sampler = || {
                n_started.set(n_started.get() + 1);
                Ok(())
            };
            viewers.join(4, false, start_sampler)
        };
        let n_admitted = |n_present: usize| viewers.admit(n_present).map(|joining| joining.len());
        let mut seats: Vec<_> = (0..MAX_VIEWERS).map(|_| join().ok()).collect();
        assert!(seats.iter().all(Option::is_some));
        assert!(join().is_err(), "all seats are taken");
        assert_eq!(n_admitted(0), Some(MAX_VIEWERS));
        seats.pop();
        assert!(join().is_ok(), "a seat is free");
        assert_eq!(n_admitted(MAX_VIEWERS - 1), Some(1));
        assert_eq!(n_started.get(), 1);
        seats.clear();
        assert_eq!(n_admitted(0), None, "the sampler must end");
        assert!(join().is_ok());
        assert_eq!(n_started.get(), 2);
    }
}
