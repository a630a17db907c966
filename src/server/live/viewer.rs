//! One viewer, as the sampler knows it: the state that was sent to it, and the events that it gets next.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Bytes;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::sample::{Sample, Status};
use super::tree::picture::Delta;
use super::viewers::Newcomer;
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
    pub(super) fn new(newcomer: Newcomer) -> Self {
        let Newcomer {
            events,
            hz,
            is_admin,
        } = newcomer;
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

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::config::ServerConfig;
    use crate::state::EngineSlot;
    use souffleur_actors::messages::TreeNotes;
    use souffleur_state::cache::changes::{Above, TreeNote};
    use souffleur_state::cache::namespace::Namespace;

    struct Stalled {
        state: AppState,
        viewer: Viewer,
        events: Receiver<Bytes>,
        tree: TreeWatch,
    }

    impl Stalled {
        fn new() -> Self {
            let render = Arc::new(String::new);
            let (sender, events) = mpsc::channel(4);
            let newcomer = Newcomer {
                events: sender,
                hz: 10,
                is_admin: false,
            };
            Self {
                state: AppState::new(ServerConfig::default(), EngineSlot::default(), render),
                viewer: Viewer::new(newcomer),
                events,
                tree: TreeWatch::default(),
            }
        }

        /// Adds a node to the tree.
        fn store(&mut self, node: u32, is_restart: bool) {
            let stored = TreeNote::Stored {
                node,
                above: Above::Root(Namespace::default()),
                tokens: 10,
            };
            let taken = TreeNotes {
                notes: vec![stored],
                is_restart,
                is_whole: true,
            };
            assert!(self.tree.apply(taken));
            self.tree.draw(&[], &[]);
        }

        fn show(&mut self, t_ms: f64) {
            let sample = Sample {
                t_ms,
                status: Status {
                    phase: "loading",
                    reason: None,
                    generation: 1,
                    died: None,
                },
                view: None,
                mailboxes: Vec::new(),
                store: None,
                loading: None,
            };
            self.viewer.show(&self.state, &sample, Some(&self.tree));
        }

        /// Takes all queued events: their names and data.
        fn read(&mut self) -> Vec<(String, Value)> {
            let queued = std::iter::from_fn(|| self.events.try_recv().ok());
            let parsed = queued.map(|event| {
                let text = std::str::from_utf8(&event).expect("events are text");
                let text = text.strip_prefix("event: ").expect("a name");
                let (name, data) = text.split_once("\ndata: ").expect("data");
                let value = serde_json::from_str(data).expect("JSON");
                (name.to_owned(), value)
            });
            parsed.collect()
        }

        fn names(&mut self) -> Vec<String> {
            let read = self.read().into_iter();
            read.map(|(name, _)| name).collect()
        }
    }

    #[test]
    fn a_viewer_that_does_not_read_skips_frames() {
        let mut stalled = Stalled::new();
        for n in 0..100 {
            stalled.show(n.into());
        }
        let read = stalled.read();
        let names: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["hello", "frame", "frame", "frame"]);
        assert_eq!(read[3].1["t_ms"], 2.0);
        stalled.show(100.0);
        assert_eq!(stalled.names(), ["frame"]);
    }

    #[test]
    fn after_skipped_frames_the_tree_is_a_snapshot() {
        let mut stalled = Stalled::new();
        stalled.store(1, true);
        stalled.show(0.0);
        assert_eq!(stalled.names(), ["hello", "frame", "tree"]);
        stalled.show(1.0);
        assert_eq!(stalled.names(), ["frame"], "the tree is the same");
        for node in 2..6 {
            stalled.store(node, false);
            stalled.show(node.into());
        }
        let read = stalled.read();
        assert_eq!(read.len(), 4, "{read:?}");
        assert_eq!(read[1].1["kind"], "delta");
        assert_eq!(read[1].1["events"][0][0], "stored");
        assert_eq!(read[3].1["total"]["nodes"], 3);
        stalled.show(6.0);
        let read = stalled.read();
        assert_eq!(read[1].1["kind"], "snapshot", "{read:?}");
        assert_eq!(read[1].1["total"]["nodes"], 5);
        assert_eq!(read[1].1["set"].as_array().map(Vec::len), Some(5));
    }

    #[test]
    fn due_times_of_one_rate_are_the_same() {
        let start = Instant::now();
        let mut viewers = [0, 30].map(|_| Stalled::new().viewer);
        let times = [10, 90].map(|ms| start + Duration::from_millis(ms));
        for (viewer, now) in viewers.iter_mut().zip(times) {
            viewer.set_next(start, now);
        }
        let next = start + Duration::from_millis(100);
        assert_eq!(viewers.map(|viewer| viewer.due()), [next; 2]);
    }
}
