//! Records the tree's changes for observers of its content. If an observer lost its state, the tree reports all nodes to
//! it again, a part at a time.
//!
//! Until it has done so, each node is reported or pending. A new or split node is reported immediately, after its
//! pending ancestors: it may take an index that the scan has passed, and all nodes at these indices must be reported.

use smallvec::SmallVec;

use super::RadixTree;
use crate::cache::changes::{Above, CacheChange, NodeTokens, Observer};

/// Indices that one call scans while nodes are reported again: about ten microseconds.
const INDICES_AT_ONCE: u32 = 256;
/// A call reports no more nodes after this many tokens, a small share of the publisher's queue.
const TOKENS_AT_ONCE: usize = 64 << 10;

/// The changes for each observer that has started.
#[derive(Default)]
pub(super) struct Observers([Option<Changes>; Observer::COUNT]);

impl Observers {
    fn started(&mut self) -> impl Iterator<Item = &mut Changes> {
        self.0.iter_mut().flatten()
    }
}

struct Changes {
    queue: Vec<CacheChange>,
    /// `None` once every node is reported.
    rescan: Option<Rescan>,
}

struct Rescan {
    /// Every node with a smaller index is reported.
    next: u32,
    /// Indexed by node.
    reported: Vec<bool>,
}

impl Changes {
    fn is_reported(&self, node: u32) -> bool {
        match &self.rescan {
            Some(rescan) => rescan.reported.get(node as usize) == Some(&true),
            None => true,
        }
    }

    fn mark(&mut self, node: u32, is_reported: bool) {
        if let Some(rescan) = &mut self.rescan {
            let index = node as usize;
            if index >= rescan.reported.len() {
                rescan.reported.resize(index + 1, false);
            }
            rescan.reported[index] = is_reported;
        }
    }
}

impl RadixTree {
    /// Records node changes for [`take_changes`](Self::take_changes) from now on: first a `Cleared`, then all nodes of
    /// the tree, a part per call, together with every new change. Another call starts over.
    pub fn restart_changes(&mut self, observer: Observer) {
        let observers = self.observers.get_or_insert_default();
        observers.0[observer as usize] = Some(Changes {
            queue: vec![CacheChange::Cleared],
            rescan: Some(Rescan {
                next: 0,
                reported: Vec::new(),
            }),
        });
    }

    /// Records no more changes for an observer.
    pub fn stop_changes(&mut self, observer: Observer) {
        if let Some(observers) = &mut self.observers {
            observers.0[observer as usize] = None;
            if observers.started().next().is_none() {
                self.observers = None;
            }
        }
    }

    /// Whether changes are recorded for any observer.
    pub fn records_changes(&self) -> bool {
        self.observers.is_some()
    }

    #[inline(always)]
    pub(super) fn record_stored(&mut self, leaf: u32) {
        if self.observers.is_some() {
            self.report_stored(leaf);
        }
    }

    #[inline(never)]
    fn report_stored(&mut self, leaf: u32) {
        if let Some(mut observers) = self.observers.take() {
            for changes in observers.started() {
                self.report(changes, leaf);
            }
            self.observers = Some(observers);
        }
    }

    /// `upper` is new, and `lower` its only child.
    pub(super) fn record_split(&mut self, upper: u32, lower: u32) {
        let Some(mut observers) = self.observers.take() else {
            return;
        };
        for changes in observers.started() {
            if changes.is_reported(lower) {
                let at = self.arena[upper].edge.len();
                changes.queue.push(CacheChange::Split { upper, lower, at });
                changes.mark(upper, true);
            } else {
                self.report(changes, lower);
            }
        }
        self.observers = Some(observers);
    }

    /// To be called before the leaf is removed.
    #[inline(always)]
    pub(super) fn record_removed(&mut self, leaf: u32) {
        if self.observers.is_some() {
            self.report_removed(leaf);
        }
    }

    #[inline(never)]
    fn report_removed(&mut self, leaf: u32) {
        let observers = self.observers.iter_mut();
        for changes in observers.flat_map(|observers| observers.started()) {
            if changes.is_reported(leaf) {
                changes.queue.push(CacheChange::Removed { node: leaf });
                changes.mark(leaf, false);
            }
        }
    }

    pub(super) fn record_cleared(&mut self) {
        let observers = self.observers.iter_mut();
        for changes in observers.flat_map(|observers| observers.started()) {
            changes.queue.clear();
            changes.queue.push(CacheChange::Cleared);
            changes.rescan = None;
        }
    }

    /// Appends the changes since the observer's last call, in the order in which they happened. If changes are recorded
    /// for an observer, the caller must take them after every plan, because the tree keeps them until then.
    pub fn take_changes(&mut self, observer: Observer, into: &mut Vec<CacheChange>) {
        let Some(mut observers) = self.observers.take() else {
            return;
        };
        if let Some(changes) = &mut observers.0[observer as usize] {
            self.report_more(changes);
            into.append(&mut changes.queue);
        }
        self.observers = Some(observers);
    }

    /// Whether some nodes are still to be reported by [`take_changes`](Self::take_changes).
    pub fn has_pending_changes(&self, observer: Observer) -> bool {
        let observers = self.observers.as_deref();
        let changes = observers.and_then(|observers| observers.0[observer as usize].as_ref());
        changes.is_some_and(|changes| changes.rescan.is_some())
    }

    fn report_more(&self, changes: &mut Changes) {
        let Some(first) = changes.rescan.as_ref().map(|rescan| rescan.next) else {
            return;
        };
        let end = self.arena.indices().end;
        let last = end.min(first + INDICES_AT_ONCE);
        let mut next = first;
        let mut n_tokens = 0;
        while next < last && n_tokens < TOKENS_AT_ONCE {
            let node = &self.arena[next];
            if node.is_live && !node.is_root() && !changes.is_reported(next) {
                let n_queued = changes.queue.len();
                self.report(changes, next);
                let reported = changes.queue[n_queued..].iter();
                n_tokens += reported.map(CacheChange::n_tokens).sum::<usize>();
            }
            next += 1;
        }
        match &mut changes.rescan {
            Some(rescan) if next < end => rescan.next = next,
            rescan => *rescan = None,
        }
    }

    /// Reports a node, after its pending ancestors.
    fn report(&self, changes: &mut Changes, node: u32) {
        let mut path: SmallVec<[u32; 8]> = SmallVec::new();
        let mut at = node;
        loop {
            path.push(at);
            at = self.arena[at].parent;
            if self.arena[at].is_root() || changes.is_reported(at) {
                break;
            }
        }
        for &node in path.iter().rev() {
            changes.queue.push(self.stored(node));
            changes.mark(node, true);
        }
    }

    fn stored(&self, index: u32) -> CacheChange {
        let node = &self.arena[index];
        let above = if self.arena[node.parent].is_root() {
            Above::Root(self.root_names[&node.parent].clone())
        } else {
            Above::Node(node.parent)
        };
        CacheChange::Stored {
            node: index,
            above,
            tokens: NodeTokens::part_of(node.edge.part()),
        }
    }
}
