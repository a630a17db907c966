//! Sliding-window layers: nodes have window pages in addition to their pages, for all of their tokens or for none.
//!
//! - A node may lose its window pages and keep the others. A match ends at the deepest node with a complete window: all
//!   window pages that a sequence resuming there sees.
//! - A lock keeps only the window pages at the end of its path. Taking a lock splits the path where these pages begin.
//! - Eviction takes window pages inside paths first, then those before boundaries from which prompts are likely to
//!   resume, last those before the ends of paths; within each part the least recently used ones.
//!
//! A sequence publishes the window pages that it still has, never one that it returned; they fill the gaps on its path.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::arena::NO_NODE;
use super::{Key, KeyUse, RadixTree};
use crate::cache::prefix_cache::CheckpointedWindows;
use crate::pool::pages::{PageIds, PageRun, Pages, RowWindows, Window, WindowPages, WindowRun};
use souffleur_base::ids::PageId;

pub(super) struct Windows {
    window: Window,
    nodes: FxHashMap<u32, NodeWindow>,
    /// Evictable nodes, in order.
    order: BTreeSet<(WindowPriority, u32)>,
    /// Pages that their nodes have lost, until the caller returns them to the pool.
    freed: PageIds,
    evictable_pages: usize,
    protected_pages: usize,
}

#[derive(Default)]
struct NodeWindow {
    /// Window pages: one for each page of the node, or none.
    pages: Vec<PageId>,
    /// Locks that keep the pages; counted also if the node has none.
    locks: u32,
    priority: WindowPriority,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct WindowPriority {
    place: Place,
    /// A reading of the tree's clock.
    last_used: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Not before a position from which prompts are known to resume.
    #[default]
    Inside,
    /// Before a position where prompts have ended or diverged.
    Boundary,
    /// Before the end of a path.
    End,
}

impl Windows {
    fn new(window: Window) -> Self {
        Self {
            window,
            nodes: FxHashMap::default(),
            order: BTreeSet::new(),
            freed: PageIds::new(),
            evictable_pages: 0,
            protected_pages: 0,
        }
    }

    fn has(&self, node: u32) -> bool {
        self.pages(node).next().is_some()
    }

    fn pages(&self, node: u32) -> impl Iterator<Item = PageId> + '_ {
        let held = self.nodes.get(&node);
        held.into_iter().flat_map(|held| held.pages.iter().copied())
    }

    /// Changes a node's entry, and updates the order and the counts with it.
    fn change<T>(&mut self, node: u32, change: impl FnOnce(&mut NodeWindow) -> T) -> T {
        let held = self.nodes.entry(node).or_default();
        match (held.pages.len(), held.locks) {
            (0, _) => (),
            (n_pages, 0) => {
                self.order.remove(&(held.priority, node));
                self.evictable_pages -= n_pages;
            }
            (n_pages, _) => self.protected_pages -= n_pages,
        }
        let changed = change(held);
        match (held.pages.len(), held.locks) {
            (0, 0) => {
                self.nodes.remove(&node);
            }
            (0, _) => (),
            (n_pages, 0) => {
                self.order.insert((held.priority, node));
                self.evictable_pages += n_pages;
            }
            (n_pages, _) => self.protected_pages += n_pages,
        }
        changed
    }

    /// Moves the first `n_pages` pages of a node to a new one above it, with the same locks.
    fn split(&mut self, upper: u32, lower: u32, n_pages: usize) {
        if !self.nodes.contains_key(&lower) {
            return;
        }
        let above = self.change(lower, |held| NodeWindow {
            pages: if held.pages.is_empty() {
                Vec::new()
            } else {
                held.pages.drain(..n_pages).collect()
            },
            ..*held
        });
        self.change(upper, |held| *held = above);
    }

    /// Drops the window pages of a node.
    pub(super) fn drop_pages(&mut self, node: u32) {
        if self.nodes.contains_key(&node) {
            let pages = self.change(node, |held| std::mem::take(&mut held.pages));
            self.freed.extend(pages);
        }
    }

    pub(super) fn clear(&mut self) {
        let mut nodes: Vec<u32> = self.nodes.keys().copied().collect();
        // Makes the order deterministic.
        nodes.sort_unstable();
        nodes.into_iter().for_each(|node| self.drop_pages(node));
    }
}

impl RadixTree {
    /// Makes the tree keep window pages: a prefix is then cached up to a node with a complete window.
    pub fn with_windows(mut self, window: Window) -> Self {
        self.windows = Some(Box::new(Windows::new(window)));
        self
    }

    /// Window pages that [`evict_windows`](Self::evict_windows) could free.
    pub fn evictable_windows(&self) -> usize {
        let windows = self.windows.as_ref();
        windows.map_or(0, |windows| windows.evictable_pages)
    }

    /// Window pages that locks keep.
    pub fn protected_windows(&self) -> usize {
        let windows = self.windows.as_ref();
        windows.map_or(0, |windows| windows.protected_pages)
    }

    /// The cached window pages, in no order.
    pub fn iter_window_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        let nodes = self.windows.iter().flat_map(|it| it.nodes.values());
        nodes.flat_map(|held| held.pages.iter().copied())
    }

    /// The deepest node on the path down to `node` from whose end a sequence can resume, and that end.
    pub(super) fn resumable_in_windows(&self, windows: &Windows, node: u32) -> (u32, usize) {
        let mut candidate = node;
        while candidate != NO_NODE && !self.arena[candidate].is_root() {
            let end = self.end_of(candidate);
            let needed = windows.window.start_of(end);
            let (mut at, mut reached) = (candidate, end);
            while reached > needed && windows.has(at) {
                reached -= self.arena[at].edge.len();
                at = self.arena[at].parent;
            }
            if reached <= needed {
                return (candidate, end);
            }
            // The windows of all nodes between the gap and the candidate include the gap, too.
            candidate = self.arena[at].parent;
        }
        (NO_NODE, 0)
    }

    /// Tokens of `key` after which a sequence could resume, even without a node that ends there.
    pub(super) fn peek_in_windows(&self, windows: &Windows, root: u32, key: &[u32]) -> usize {
        let (mut node, mut matched, mut resumable) = (root, 0, 0);
        // Start of the contiguous window pages that reach the end of the match.
        let mut first = 0;
        let mut tag = self.arena.tag_below(root, key);
        while let Some(step) = self.arena.step(node, tag, &key[matched..]) {
            let end = matched + step.common;
            if !windows.has(step.child) {
                first = end;
            }
            if windows.window.start_of(end) >= first {
                resumable = end;
            }
            if step.common < self.arena[step.child].edge.len() {
                break;
            }
            (node, tag, matched) = (step.child, step.tag, end);
        }
        resumable
    }

    pub(super) fn split_windows(&mut self, upper: u32, lower: u32) {
        if let Some(windows) = self.windows.as_deref_mut() {
            let n_pages = self.page_size.full_pages(self.arena[upper].edge.len());
            windows.split(upper, lower, n_pages);
        }
    }

    /// The nodes, from `node` up, with its path's [tail](Window::tail_of). Splits the topmost where the tail begins.
    fn tail_of(&mut self, node: u32) -> Vec<u32> {
        let Some(windows) = self.windows.as_deref() else {
            return Vec::new();
        };
        let start = windows.window.tail_of(self.end_of(node));
        let mut tail = Vec::new();
        let mut at = node;
        loop {
            tail.push(at);
            let first = self.arena.usage(at).start_tokens as usize;
            if first < start {
                self.split(at, start - first, self.clock);
            }
            if first <= start {
                return tail;
            }
            at = self.arena[at].parent;
        }
    }

    /// Keeps the window pages at the end of a node's path.
    pub(super) fn lock_windows(&mut self, node: u32) {
        for at in self.tail_of(node) {
            self.change_windows(at, |held| held.locks += 1);
        }
    }

    pub(super) fn unlock_windows(&mut self, node: u32) {
        // Taking the lock split the path where the tail begins, so these are the nodes that it locked.
        for at in self.tail_of(node) {
            self.change_windows(at, |held| {
                held.locks = held
                    .locks
                    .checked_sub(1)
                    .expect("the node counts its locks");
            });
        }
    }

    /// Postpones the eviction of the window pages before the end of a node, because prompts resume there or are likely
    /// to. The end of a prefill chunk is no such position.
    pub(super) fn raise_window_priority(&mut self, node: u32) {
        if self.windows.is_none() || node == NO_NODE || self.arena[node].is_root() {
            return;
        }
        let last_used = self.clock;
        let place = match self.arena[node].n_children {
            0 => Place::End,
            _ => Place::Boundary,
        };
        for at in self.tail_of(node) {
            self.change_windows(at, |held| {
                let place = place.max(held.priority.place);
                held.priority = WindowPriority { place, last_used };
            });
        }
    }

    /// Lets the window pages before the end of a node be evicted earlier, because the node no longer ends a path.
    pub(super) fn lower_window_priority(&mut self, node: u32) {
        if self.windows.is_none() || self.arena[node].is_root() || self.arena[node].n_children > 1 {
            return;
        }
        for at in self.tail_of(node) {
            self.change_windows(at, |held| {
                held.priority.place = held.priority.place.min(Place::Boundary);
            });
        }
    }

    fn change_windows(&mut self, node: u32, change: impl FnOnce(&mut NodeWindow)) {
        if let Some(windows) = self.windows.as_deref_mut() {
            windows.change(node, change);
        }
    }

    /// The window pages that a sequence resuming after a node sees.
    pub(super) fn window_run(&self, node: u32) -> WindowRun {
        let Some(windows) = self.windows.as_deref() else {
            return WindowRun::default();
        };
        if node == NO_NODE || self.arena[node].is_root() {
            return WindowRun::default();
        }
        let end = self.end_of(node);
        let start = windows.window.start_of(end);
        let mut parts = Vec::new();
        let (mut at, mut first) = (node, end);
        while first > start {
            parts.push(at);
            first -= self.arena[at].edge.len();
            at = self.arena[at].parent;
        }
        let path = parts.iter().rev().flat_map(|node| windows.pages(*node));
        let skipped = self.page_size.full_pages(start.saturating_sub(first));
        let ids: Vec<PageId> = path.skip(skipped).collect();
        debug_assert_eq!(ids.len(), self.page_size.full_pages(end - start));
        let mut pages = PageRun::empty();
        pages.push(
            &ids.into(),
            0..self.page_size.full_pages(end - start) as u32,
        );
        WindowRun {
            from: self.page_size.full_pages(start),
            pages,
        }
    }

    /// Gives the nodes of a published key, which ends at `node`, the window pages that they lack.
    pub(super) fn keep_windows(
        &mut self,
        node: u32,
        n_key_pages: usize,
        given: Option<Box<RowWindows>>,
    ) -> Option<Box<CheckpointedWindows>> {
        let mut own = *given?;
        let mut rest = own.take_from(n_key_pages);
        let mut duplicates = WindowPages::empty();
        let (mut at, mut end) = (node, own.first + own.pages.len());
        debug_assert!(own.pages.is_empty() || self.end_of(node) == self.page_size.tokens_in(end));
        while !own.pages.is_empty() {
            let start = self
                .page_size
                .full_pages(self.arena.usage(at).start_tokens as usize);
            let from = start.max(own.first);
            let pages = own.take_from(from);
            if self.windows.as_ref().is_some_and(|windows| windows.has(at)) {
                duplicates.append(pages);
            } else {
                if from > start {
                    let at_tokens = self.page_size.tokens_in(from - start);
                    self.split(at, at_tokens, self.clock);
                }
                let ids = pages.into_pages().surrender();
                let now = self.clock;
                self.change_windows(at, |held| {
                    held.pages = ids.into_vec();
                    held.priority.last_used = now;
                });
            }
            (at, end) = (self.arena[at].parent, from);
        }
        debug_assert!(end >= own.first);
        own.first = own.first.max(n_key_pages);
        own.pages.append(std::mem::take(&mut rest));
        Some(Box::new(CheckpointedWindows {
            own,
            duplicates,
            remap: WindowRun::default(),
        }))
    }

    /// Marks the positions of a published key from which others are likely to resume.
    pub(super) fn mark_boundaries(&mut self, key: Key<'_>, boundaries: &[usize], key_use: KeyUse) {
        if self.windows.is_none() {
            return;
        }
        let uncounted = KeyUse {
            counted_tokens: usize::MAX,
            ..key_use
        };
        for boundary in boundaries {
            if let Some(tokens) = key.tokens.get(..self.page_size.floor(*boundary)) {
                let key = Key { tokens, ..key };
                let (node, _) = self.insert_key(key, 0, &mut Pages::empty(), uncounted);
                self.raise_window_priority(node);
            }
        }
    }

    /// Drops at least `n_pages` window pages, or all that no lock keeps. The nodes' other pages stay.
    pub fn evict_windows(&mut self, n_pages: usize) {
        let Some(windows) = self.windows.as_deref_mut() else {
            return;
        };
        let target = windows.freed.len() + n_pages;
        while windows.freed.len() < target
            && let Some((_, node)) = windows.order.first().copied()
        {
            windows.drop_pages(node);
        }
    }

    /// The window pages that left the tree since the last call.
    pub fn take_freed_windows(&mut self) -> WindowPages {
        let Some(windows) = self.windows.as_deref_mut() else {
            return WindowPages::empty();
        };
        let freed = std::mem::take(&mut windows.freed);
        WindowPages::of(Pages::adopt(freed, &self.ledger))
    }

    /// Compares the window pages with the nodes, and names the first inconsistency.
    pub(super) fn check_windows(&self) -> Result<(), String> {
        let Some(windows) = self.windows.as_deref() else {
            return Ok(());
        };
        let mut seen = FxHashSet::default();
        let (mut evictable, mut protected, mut ordered) = (0, 0, 0);
        for (&node, held) in &windows.nodes {
            let is_live = node < self.arena.indices().end && self.arena[node].is_live;
            if !is_live || self.arena[node].is_root() {
                return Err(format!(
                    "window pages belong to node {node}, which does not exist"
                ));
            }
            let (n_held, n_pages) = (
                held.pages.len(),
                self.page_size.full_pages(self.arena[node].edge.len()),
            );
            if n_held > 0 && n_held != n_pages {
                return Err(format!(
                    "node {node} has {n_pages} pages, but {n_held} window pages"
                ));
            }
            if held.locks > self.arena[node].lock_ref {
                return Err(format!(
                    "node {node} has more locks on its window pages than on itself"
                ));
            }
            if let Some(page) = held.pages.iter().find(|page| !seen.insert(**page)) {
                return Err(format!("window page {page} is cached twice"));
            }
            match held.locks {
                0 => evictable += n_held,
                _ => protected += n_held,
            }
            let is_evictable = n_held > 0 && held.locks == 0;
            if is_evictable != windows.order.contains(&(held.priority, node)) {
                return Err(format!(
                    "the window pages of node {node} have a wrong entry in the eviction order"
                ));
            }
            ordered += usize::from(is_evictable);
        }
        let kept = (
            windows.evictable_pages,
            windows.protected_pages,
            windows.order.len(),
        );
        if kept == (evictable, protected, ordered) {
            Ok(())
        } else {
            Err(format!(
                "window pages: recorded {kept:?}, counted {:?}",
                (evictable, protected, ordered)
            ))
        }
    }
}
