//! Follows the prefix tree of one unit: its mirror, the current picture, and the last events.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::tree::mirror::{Mirror, TreeEvent};
use super::tree::names::Names;
use super::tree::picture::Picture;
use souffleur_actors::messages::TreeNotes;
use souffleur_base::error::RequestError;
use souffleur_engine::{EngineHandle, TreeReader};
use souffleur_state::scheduler::live::LivePin;

/// The number of events that are kept for viewers with a low rate.
const KEPT_EVENTS: usize = 4096;
/// The largest number of events in one message.
const SENT_EVENTS: usize = 128;

#[derive(Default)]
pub(super) struct TreeWatch {
    /// The tree is noted until this is dropped.
    reader: Arc<TreeReader>,
    mirror: Mirror,
    /// The mirror has changed since it was folded.
    has_changed: bool,
    /// Without locks and pins.
    folded: Picture,
    /// `None` until all nodes are known.
    picture: Option<Arc<Picture>>,
    /// How often the notes began anew.
    restarts: u64,
    events: VecDeque<TreeEvent>,
    /// The number of events before those in `events`.
    n_dropped: u64,
}

/// A state of the tree that a viewer knows.
pub(super) struct TreeMark {
    pub(super) picture: Arc<Picture>,
    restarts: u64,
    /// The number of events until then.
    n_events: u64,
}

impl TreeWatch {
    /// Takes the tree's changes since the last call.
    ///
    /// # Errors
    /// The unit has died: it needs another [`TreeWatch`].
    pub(super) async fn update(
        &mut self,
        engine: &EngineHandle,
        pins: &[LivePin],
    ) -> Result<(), RequestError> {
        // The tree reports its nodes in parts.
        loop {
            let taken = engine.tree_notes(&self.reader).await?;
            if self.apply(taken) {
                break;
            }
        }
        let locks = engine.locks_of(self.folded.ids()).await?;
        self.draw(&locks, pins);
        Ok(())
    }

    /// Applies notes to the mirror. Returns true, and folds the tree, if all nodes are known.
    pub(super) fn apply(&mut self, taken: TreeNotes) -> bool {
        if taken.is_restart {
            self.restarts += 1;
            self.picture = None;
        }
        self.has_changed |= !taken.notes.is_empty();
        for note in &taken.notes {
            let event = self.mirror.apply(note);
            if self.picture.is_some() {
                self.events.extend(event);
            }
        }
        let excess = self.events.len().saturating_sub(KEPT_EVENTS);
        self.events.drain(..excess);
        self.n_dropped += excess as u64;
        if taken.is_whole && std::mem::take(&mut self.has_changed) {
            self.folded = Picture::of(&self.mirror);
        }
        taken.is_whole
    }

    /// Makes the picture of the folded tree.
    pub(super) fn draw(&mut self, locks: &[u32], pins: &[LivePin]) {
        let mut picture = self.folded.clone();
        picture.set_locks(locks);
        picture.set_pins(pins, &self.mirror);
        if self.picture.as_deref() != Some(&picture) {
            self.picture = Some(Arc::new(picture));
        }
    }

    /// The current state; `None` until all nodes are known.
    pub(super) fn mark(&self) -> Option<TreeMark> {
        let picture = self.picture.clone()?;
        Some(TreeMark {
            picture,
            restarts: self.restarts,
            n_events: self.n_dropped + self.events.len() as u64,
        })
    }

    pub(super) fn names(&self) -> &Names {
        self.mirror.names()
    }

    /// The newest events after `before` of nodes that have a row then or now, and the number of the others. `None` if
    /// the notes have begun anew since then.
    pub(super) fn events_since(&self, before: &TreeMark) -> Option<(Vec<TreeEvent>, u64)> {
        if before.restarts != self.restarts {
            return None;
        }
        let now = self.picture.as_deref()?;
        let rows = before.picture.rows.iter().chain(&now.rows);
        let ids: FxHashSet<u32> = rows.map(|row| row.id).collect();
        let lost = self.n_dropped.saturating_sub(before.n_events);
        let first = before.n_events.saturating_sub(self.n_dropped) as usize;
        let new = self.events.iter().skip(first);
        let shown = new.filter(|event| Picture::shows(&ids, event)).copied();
        let mut shown: Vec<TreeEvent> = shown.collect();
        let excess = shown.len().saturating_sub(SENT_EVENTS);
        shown.drain(..excess);
        Some((shown, lost + excess as u64))
    }
}
