//! The order of eviction and eviction itself.
//!
//! For policies whose keys only grow, the order is lazy: an entry is as old as the last time its node came up
//! and may be smaller than the node's key by now. A match therefore writes nothing but the node. What comes
//! up too early is put back at its true place, at most once for every use since; what is locked or has got
//! children is dropped and offered again when that ends.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;

use smallvec::SmallVec;

use super::RadixTree;
use crate::state::eviction::{EvictionKey, KeyTrend};
use crate::state::pages::{PageIds, Pages};
use crate::state::prefix_cache::Evicted;

type Entry = (EvictionKey, u32);

/// Candidates whose memory is fetched together: one wait for all of them.
const LOOKAHEAD: usize = 16;

/// Candidates in order of their keys. A live node has at most one entry, a removed one none.
///
/// New leaves mostly come with the largest key so far: those wait in a plain queue, and only the others need
/// a heap.
#[derive(Default)]
pub(super) struct Victims {
    ascending: VecDeque<Entry>,
    others: BinaryHeap<Reverse<Entry>>,
    /// How many entries at the front of the queue have been handed out by [`Victims::ahead`].
    n_fetched: usize,
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
            _ => {
                self.n_fetched = self.n_fetched.saturating_sub(1);
                self.ascending.pop_front()
            }
        }
    }

    /// The nodes at the front of the queue, once all that were handed out before are gone.
    fn ahead(&mut self) -> SmallVec<[u32; LOOKAHEAD]> {
        if self.n_fetched > 0 {
            return SmallVec::new();
        }
        self.n_fetched = self.ascending.len().min(LOOKAHEAD);
        let ahead = self.ascending.iter().take(self.n_fetched);
        ahead.map(|entry| entry.1).collect()
    }

    fn clear(&mut self) {
        self.n_fetched = 0;
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
            if nodes == 1 && freed < tokens {
                let n_more = (tokens - freed).min(self.evictable_tokens);
                ids.reserve(self.page_size.full_pages(n_more));
            }
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
        self.fetch_ahead();
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

    /// Reads what the next evictions will read. Leaves that nobody has used for long are in no cache, and here the
    /// reads do not wait for each other.
    fn fetch_ahead(&mut self) {
        let ahead = self.victims.ahead();
        let nodes = ahead.iter().map(|&index| self.arena.glance(index));
        black_box(nodes.fold(0, |seen, one| seen ^ one));
        let rest = ahead.iter().map(|&index| self.arena.glance_behind(index));
        black_box(rest.fold(0, |seen, one| seen ^ one));
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
