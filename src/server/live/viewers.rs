//! The list of viewers, through which they and the sampler meet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::web::Bytes;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::{Notify, watch};

use super::sampler;
use super::viewer::Viewer;
use crate::error::ApiError;
use crate::state::AppState;

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
    /// Viewers that the sampler does not know yet.
    joining: Vec<Viewer>,
    is_sampled: bool,
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
    /// Adds a viewer, and starts the sampler for the first one. Returns the viewer's events.
    ///
    /// # Errors
    /// [`MAX_VIEWERS`] are watching, or the sampler's thread cannot be started.
    pub(super) fn join(
        state: &Arc<AppState>,
        hz: u32,
        is_admin: bool,
    ) -> Result<(Receiver<Bytes>, Seat), ApiError> {
        let viewers = state.viewers();
        let mut entries = viewers.lock();
        if entries.n_viewers >= MAX_VIEWERS {
            return Err(ApiError::too_many_viewers(MAX_VIEWERS));
        }
        if !entries.is_sampled {
            sampler::start(state.clone()).map_err(|error| ApiError::no_sampler(&error))?;
            entries.is_sampled = true;
        }
        let (sender, events) = mpsc::channel(QUEUED_EVENTS);
        entries.joining.push(Viewer::new(sender, hz, is_admin));
        entries.n_viewers += 1;
        drop(entries);
        viewers.changed.notify_one();
        let seat = Seat {
            viewers: viewers.clone(),
        };
        Ok((events, seat))
    }

    /// For the sampler: adds new viewers to `present`. Returns false if there are none: the sampler must end, and the
    /// next viewer starts another one.
    pub(super) fn admit(&self, present: &mut Vec<Viewer>) -> bool {
        let mut entries = self.lock();
        present.append(&mut entries.joining);
        entries.is_sampled = !present.is_empty();
        entries.is_sampled
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
