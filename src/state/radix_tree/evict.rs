//! The order of eviction and eviction itself.
//!
//! For policies whose keys only grow, the order is lazy: an entry is as old as the last time its node came up
//! and may be smaller than the node's key by now. A match therefore writes nothing but the node. What comes
//! up too early is put back at its true place, at most once for every use since; what is locked or has got
//! children is dropped and offered again when that ends.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;

use super::{Edge, RadixTree};
use crate::state::eviction::{EvictionKey, KeyTrend, NodeUse};
use crate::state::pages::EvictedPages;
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

    #[inline]
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
    fn ahead(&mut self) -> impl Iterator<Item = u32> + '_ {
        let n_more = match self.n_fetched {
            0 => self.ascending.len().min(LOOKAHEAD),
            _ => 0,
        };
        self.n_fetched += n_more;
        self.ascending.iter().take(n_more).map(|entry| entry.1)
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
        let victim = if tokens > 0 { self.next_victim() } else { None };
        let Some(victim) = victim else {
            return Evicted::default();
        };
        let edge = self.remove_leaf(victim);
        let first = Evicted {
            tokens: edge.len(),
            nodes: 1,
            pages: EvictedPages::of(edge, &self.ledger, self.page_size),
            edges: self.take_noted(),
        };
        if first.tokens < tokens {
            return self.evict_more(tokens, first);
        }
        first
    }

    fn evict_more(&mut self, tokens: usize, mut evicted: Evicted) -> Evicted {
        while evicted.tokens < tokens {
            let Some(victim) = self.next_victim() else {
                break;
            };
            let edge = self.remove_leaf(victim);
            evicted.tokens += edge.len();
            evicted.nodes += 1;
            evicted.pages.push(edge);
        }
        evicted.edges.append(&mut self.take_noted());
        evicted
    }

    /// Puts a node into the order if it may be evicted and is not in it.
    pub(super) fn offer(&mut self, node: u32) {
        if self.policy.trend() == KeyTrend::Grows {
            self.enqueue(node);
        }
    }

    /// Puts a leaf into the order that was just made.
    pub(super) fn offer_new(&mut self, leaf: u32, usage: &NodeUse) {
        if self.policy.trend() == KeyTrend::Grows {
            self.arena[leaf].is_queued = true;
            self.victims.push((self.policy.key(usage), leaf));
        }
    }

    fn enqueue(&mut self, index: u32) {
        let node = &mut self.arena[index];
        if node.is_evictable() && !node.is_queued {
            node.is_queued = true;
            node.is_used_since = false;
            let key = self.policy.key(&self.arena.usage(index));
            self.victims.push((key, index));
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
            if node.is_evictable() {
                let is_due = !node.is_used_since;
                if is_due || self.policy.key(&self.arena.usage(index)) == key {
                    return Some(index);
                }
                self.enqueue(index);
            }
        }
        None
    }

    /// Reads what the next evictions will read. Leaves that nobody has used for long are in no cache, and here the
    /// reads do not wait for each other.
    fn fetch_ahead(&mut self) {
        let ahead = self.victims.ahead();
        black_box(ahead.fold(0, |seen, index| seen ^ self.arena.glance(index)));
    }

    /// Removes an evictable leaf.
    fn remove_leaf(&mut self, leaf: u32) -> Edge {
        self.note_eviction(leaf);
        self.arena.remove(leaf);
        self.forget_note(leaf);
        let node = &self.arena[leaf];
        let parent = node.parent;
        let above = &self.arena[parent];
        let (is_leaf, is_root) = (above.n_children == 0, above.is_root());
        self.evictable_tokens -= node.edge.len();
        if node.edge.shares_with(&above.edge) {
            self.arena.cut_buffer(parent);
        }
        if is_leaf && is_root {
            self.drop_root(parent);
        } else if is_leaf {
            self.enqueue(parent);
        }
        self.arena.take_edge(leaf)
    }
}
