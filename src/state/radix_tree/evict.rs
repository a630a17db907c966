//! The order of eviction and eviction itself.
//!
//! For policies whose keys only grow, the order is lazy: an entry is as old as the last time its node came up
//! and may be smaller than the node's key by now. A match therefore writes nothing but the node. What comes
//! up too early is put back at its true place, at most once for every use since; what is locked or has got
//! children is dropped and offered again when that ends.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::RadixTree;
use crate::state::eviction::{EvictionKey, KeyTrend};
use crate::state::pages::{PageIds, Pages};
use crate::state::prefix_cache::Evicted;

type Entry = (EvictionKey, u32);

/// Candidates in order of their keys. A live node has at most one entry, a removed one none.
///
/// New leaves mostly come with the largest key so far: those wait in a plain queue, and only the others need
/// a heap.
#[derive(Default)]
pub(super) struct Victims {
    ascending: VecDeque<Entry>,
    others: BinaryHeap<Reverse<Entry>>,
}

impl Victims {
    fn push(&mut self, entry: Entry) {
        match self.ascending.back() {
            Some(last) if *last > entry => self.others.push(Reverse(entry)),
            _ => self.ascending.push_back(entry),
        }
    }

    fn pop(&mut self) -> Option<Entry> {
        match (self.ascending.front(), self.others.peek()) {
            (Some(first), Some(Reverse(other))) if other < first => self.others.pop().map(|e| e.0),
            (None, _) => self.others.pop().map(|e| e.0),
            _ => self.ascending.pop_front(),
        }
    }

    fn clear(&mut self) {
        self.ascending.clear();
        self.others.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.ascending
            .iter()
            .copied()
            .chain(self.others.iter().map(|entry| entry.0))
    }
}

impl RadixTree {
    pub(super) fn evict_leaves(&mut self, tokens: usize) -> Evicted {
        let is_kept = self.policy.trend() == KeyTrend::Grows && !self.order_is_stale;
        if tokens > 0 && !is_kept {
            self.rebuild_victims();
        }
        let mut ids = PageIds::new();
        let (mut freed, mut nodes) = (0, 0);
        while freed < tokens {
            let Some(victim) = self.next_victim() else {
                break;
            };
            freed += self.remove_leaf(victim, &mut ids);
            nodes += 1;
        }
        Evicted {
            pages: Pages::adopt(ids, &self.ledger),
            tokens: freed,
            nodes,
            edges: self
                .notes
                .as_mut()
                .map(|notes| notes.take_evicted())
                .unwrap_or_default(),
        }
    }

    /// Puts a node into the order if it may be evicted and is not in it.
    pub(super) fn offer(&mut self, node: u32) {
        if self.policy.trend() == KeyTrend::Grows {
            self.enqueue(node);
        }
    }

    fn enqueue(&mut self, index: u32) {
        let node = &mut self.arena[index];
        if node.is_evictable() && !node.is_queued {
            node.is_queued = true;
            self.victims.push((self.policy.key(&node.usage), index));
        }
    }

    pub(super) fn rebuild_victims(&mut self) {
        self.order_is_stale = false;
        self.victims.clear();
        for index in self.arena.indices() {
            self.arena[index].is_queued = false;
            self.enqueue(index);
        }
    }

    fn next_victim(&mut self) -> Option<u32> {
        while let Some((key, index)) = self.victims.pop() {
            let node = &mut self.arena[index];
            node.is_queued = false;
            if node.is_evictable() && self.policy.key(&node.usage) == key {
                return Some(index);
            }
            self.enqueue(index);
        }
        None
    }

    /// Removes an evictable leaf and returns its length in tokens.
    fn remove_leaf(&mut self, leaf: u32, ids: &mut PageIds) -> usize {
        self.note_eviction(leaf);
        let (parent, edge) = self.arena.remove(leaf);
        self.forget_note(leaf);
        let n_tokens = edge.len();
        self.evictable_tokens -= n_tokens;
        let is_cut = edge.shares_with(&self.arena[parent].edge);
        edge.move_pages(ids, self.page_size);
        if is_cut {
            self.arena.cut_buffer(parent);
        }
        let above = &self.arena[parent];
        if above.is_root() && above.n_children == 0 {
            self.drop_root(parent);
        } else {
            self.enqueue(parent);
        }
        n_tokens
    }
}
