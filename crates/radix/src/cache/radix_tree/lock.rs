//! Lock counts of the radix tree: a lock on a node protects its whole path.

use smallvec::SmallVec;

use super::RadixTree;
use super::arena::NO_NODE;
use crate::pool::pages::{LockPart, NodeLock, PageRun};

/// Paths of up to this many nodes are collected without allocating.
const INLINE_PATH: usize = 32;

impl RadixTree {
    pub(super) fn lock_node(&mut self, node: u32) -> NodeLock {
        if node == NO_NODE || self.arena[node].is_root() {
            return NodeLock::root();
        }
        let mut at = node;
        while !self.arena[at].is_root() {
            let on_path = &mut self.arena[at];
            if on_path.lock_ref == 0 {
                self.evictable_tokens -= on_path.edge.len();
                self.protected_tokens += on_path.edge.len();
            }
            on_path.lock_ref += 1;
            at = on_path.parent;
        }
        self.recount_queued(node);
        if self.windows.is_some() {
            self.lock_windows(node);
        }
        NodeLock::on(node, &self.ledger)
    }

    /// Releases a lock. Nodes that it alone protected become evictable.
    ///
    /// Mutates lock counts only: no touch. A lock on the root does nothing.
    pub fn unlock(&mut self, lock: NodeLock) {
        let part = lock.part();
        let Some(node) = lock.surrender() else { return };
        if self.windows.is_some() {
            if part != LockPart::Path {
                self.unlock_windows(node);
            }
            if part == LockPart::Windows {
                return;
            }
        }
        let mut at = node;
        while !self.arena[at].is_root() {
            let on_path = &mut self.arena[at];
            on_path.lock_ref = on_path
                .lock_ref
                .checked_sub(1)
                .expect("the node counts its locks");
            if on_path.lock_ref == 0 {
                self.protected_tokens -= on_path.edge.len();
                self.evictable_tokens += on_path.edge.len();
            }
            at = on_path.parent;
        }
        self.recount_queued(node);
        self.offer(node);
    }

    /// The number of locks on a node and below it; 0 if it does not exist.
    pub fn locks_of(&self, node: u32) -> u32 {
        if !self.arena.indices().contains(&node) {
            return 0;
        }
        let node = &self.arena[node];
        if node.is_live { node.lock_ref } else { 0 }
    }

    /// The nodes from the top down to `node`, without the root.
    pub(super) fn path_to(&self, node: u32) -> Vec<u32> {
        let mut path = Vec::new();
        let mut at = node;
        while at != NO_NODE && !self.arena[at].is_root() {
            path.push(at);
            at = self.arena[at].parent;
        }
        path.reverse();
        path
    }

    pub(super) fn path_pages(&self, lock: &NodeLock) -> usize {
        let mut at = lock.node().unwrap_or(NO_NODE);
        let mut n_pages = 0;
        while at != NO_NODE {
            n_pages += self.page_size.full_pages(self.arena[at].edge.len());
            at = self.arena[at].parent;
        }
        n_pages
    }

    /// The pages of the path down to `node`, without the first `skip` pages.
    pub(super) fn page_run(&self, node: u32, skip: usize) -> PageRun {
        let mut path: SmallVec<[u32; INLINE_PATH]> = SmallVec::new();
        let mut at = node;
        while at != NO_NODE {
            path.push(at);
            at = self.arena[at].parent;
        }
        let mut run = PageRun::empty();
        let mut to_skip = skip;
        for &node in path.iter().rev() {
            let edge = &self.arena[node].edge;
            let skipped = to_skip.min(self.page_size.full_pages(edge.len()));
            edge.push_pages(&mut run, skipped, self.page_size);
            to_skip -= skipped;
        }
        run
    }
}
