//! One viewer, as the sampler knows it: what was sent to it, and what it gets next.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Bytes;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::sample::{Sample, Status};
use super::tree::picture::Delta;
use super::watch::{TreeMark, TreeWatch};
use super::wire::{self, TreeMessage};
use crate::state::AppState;

pub(super) struct Viewer {
    events: Sender<Bytes>,
    hz: u32,
    is_admin: bool,
    due: Instant,
    /// That of the last `hello`.
    status: Option<Status>,
    /// The newest step at the last frame; `None` before the first.
    newest_step: Option<u64>,
    /// The state of the tree that the viewer knows; `None` if it needs a snapshot.
    tree: Option<TreeMark>,
}

impl Viewer {
    pub(super) fn new(events: Sender<Bytes>, hz: u32, is_admin: bool) -> Self {
        Self {
            events,
            hz,
            is_admin,
            due: Instant::now(),
            status: None,
            newest_step: None,
            tree: None,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Sets the next due time. Viewers of the same rate are due at the same times.
    pub(super) fn set_next(&mut self, start: Instant, now: Instant) {
        let period = Duration::from_secs(1) / self.hz;
        let n_periods = (now - start).as_nanos() / period.as_nanos() + 1;
        self.due = start + period * n_periods as u32;
    }

    /// Forgets what belongs to the last unit.
    pub(super) fn enter_generation(&mut self) {
        self.newest_step = self.newest_step.map(|_| 0);
        self.tree = None;
    }

    /// The viewer needs the steps after this one.
    pub(super) fn steps_after(&self) -> u64 {
        self.newest_step.unwrap_or(0)
    }

    /// Queues the events of a sample. If there is no room for all of them, the viewer gets none.
    pub(super) fn show(&mut self, state: &AppState, sample: &Sample, tree: Option<&TreeWatch>) {
        let mut events = Vec::with_capacity(3);
        let is_new = self.status.as_ref() != Some(&sample.status);
        if is_new {
            self.tree = None;
            events.push(wire::hello(state, &sample.status, self.hz, self.is_admin));
        }
        events.push(wire::frame(sample, self.newest_step, self.is_admin));
        let drawn = tree.and_then(|tree| self.draw(tree));
        if let Some((event, _)) = &drawn {
            events.push(event.clone());
        }
        if self.events.capacity() < events.len() {
            self.tree = None;
            return;
        }
        for event in events {
            // Fails if the viewer has gone, which the sampler sees at the next frame.
            let _ = self.events.try_send(event);
        }
        if is_new {
            self.status = Some(sample.status.clone());
        }
        if let Some(view) = &sample.view {
            self.newest_step = Some(view.newest_step);
        }
        if let Some((_, mark)) = drawn {
            self.tree = Some(mark);
        }
    }

    /// The event that leads to the tree's current state, and this state; `None` if nothing has changed.
    fn draw(&self, tree: &TreeWatch) -> Option<(Bytes, TreeMark)> {
        let now = tree.mark()?;
        let names = self.is_admin.then(|| tree.names());
        let known = self.tree.as_ref();
        let known = known.and_then(|known| Some((known, tree.events_since(known)?)));
        let message = match known {
            Some((known, _)) if Arc::ptr_eq(&known.picture, &now.picture) => return None,
            Some((known, (events, left_out))) => {
                let delta = now.picture.since(&known.picture);
                // A snapshot is shorter than such a delta.
                let is_large = delta.gone.len() + delta.set.len() > now.picture.rows.len();
                TreeMessage {
                    kind: if is_large { "snapshot" } else { "delta" },
                    delta: if is_large {
                        now.picture.since(&Default::default())
                    } else {
                        delta
                    },
                    events,
                    left_out,
                }
            }
            None => TreeMessage {
                kind: "snapshot",
                delta: Delta {
                    gone: Vec::new(),
                    set: now.picture.rows.clone(),
                },
                events: Vec::new(),
                left_out: 0,
            },
        };
        Some((wire::tree(message, &now.picture, names), now))
    }
}
