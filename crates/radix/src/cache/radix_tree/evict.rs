//! Eviction from the radix tree: the order of its victims, and their removal.
//!
//! For policies whose keys only grow, the order is lazy: an entry keeps its key although the node's key may have grown,
//! so a match updates only nodes. A leaf at the front whose entry is outdated is inserted again with its current key,
//! at most once per use. A node at the front that is locked or has children is removed from the order, and inserted
//! again when it is an unlocked leaf.
//!
//! A policy with queues has one such order per queue, with positions in the queue as keys (`queues.rs`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;

use rustc_hash::FxHashMap;

use super::arena::Arena;
use super::states::rank;
use super::{Edge, RadixTree};
use crate::cache::eviction::{EvictionKey, EvictionPolicy, KeyTrend, NodeUse};
use crate::pool::pages::{EvictedPages, Pages};

type Entry = (EvictionKey, u32);

/// Candidates whose memory is fetched in parallel.
const LOOKAHEAD: usize = 16;

/// Candidates in order of their keys. A live node has at most one entry, a removed one none.
///
/// New leaves mostly have the largest key so far. They are kept in a plain queue, without keys; only the others need a
/// heap.
#[derive(Default)]
pub(super) struct Victims {
    ascending: VecDeque<u32>,
    /// The key of the last node in `ascending`, if there is one.
    last: EvictionKey,
    others: BinaryHeap<Reverse<Entry>>,
    /// How many nodes at the front of `ascending` were returned by [`Victims::ahead`].
    n_fetched: usize,
}

impl Victims {
    #[inline(always)]
    pub(super) fn push(&mut self, (key, node): Entry) {
        if key < self.last && !self.ascending.is_empty() {
            self.others.push(Reverse((key, node)));
        } else {
            self.last = key;
            self.ascending.push_back(node);
        }
    }

    /// The next candidate. `key_of` returns the key of a queued node, or `None` if the node's entry is outdated.
    #[inline(always)]
    pub(super) fn pop(&mut self, key_of: impl FnOnce(u32) -> Option<EvictionKey>) -> Option<u32> {
        if let Some(Reverse((other, _))) = self.others.peek() {
            let is_first = match self.ascending.front() {
                Some(&queued) => key_of(queued).is_some_and(|key| *other < key),
                None => true,
            };
            if is_first {
                return self.others.pop().map(|Reverse((_, node))| node);
            }
        }
        self.n_fetched = self.n_fetched.saturating_sub(1);
        self.ascending.pop_front()
    }

    /// The nodes at the front of `ascending`, for prefetching.
    fn ahead(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.n_fetched = self.ascending.len().min(LOOKAHEAD);
        self.ascending.iter().take(self.n_fetched).copied()
    }

    pub(super) fn clear(&mut self) {
        self.n_fetched = 0;
        self.ascending.clear();
        self.others.clear();
    }

    /// The queued nodes, in order.
    pub(super) fn queued(&self) -> impl ExactSizeIterator<Item = u32> {
        self.ascending.iter().copied()
    }

    /// The heap's entries, in no order.
    pub(super) fn others(&self) -> impl ExactSizeIterator<Item = Entry> {
        self.others.iter().map(|entry| entry.0)
    }
}

impl RadixTree {
    /// Evicts whole unlocked leaves in the policy's order until at least `tokens` are freed or none is left. A parent
    /// that becomes a leaf may be evicted in the same call. May free more than `tokens`; `evict(0)` does nothing.
    ///
    /// Mutates: removes nodes. Locked paths are never touched.
    pub fn evict(&mut self, tokens: usize) -> EvictedPages {
        if tokens == 0 {
            return EvictedPages::empty();
        }
        if self.policy.trend() != KeyTrend::Grows || self.order_is_stale {
            self.rebuild_victims();
        }
        let Some(first) = self.evict_leaf() else {
            return EvictedPages::empty();
        };
        if first.len() < tokens {
            return self.evict_more(tokens, first);
        }
        EvictedPages::of(first)
    }

    /// Evicts by another policy from now on.
    pub fn set_eviction_policy(&mut self, policy: EvictionPolicy) {
        let identity = |policy: EvictionPolicy| (policy.name(), policy.parameters());
        if identity(policy) == identity(self.policy) {
            return;
        }
        self.policy = policy;
        self.fill_queues();
        self.rebuild_victims();
    }

    /// Empties the tree and returns its pages. Locked paths stay: to flush everything, call it when
    /// [`protected_size`](Self::protected_size) is 0. [`take_evicted_edges`](Self::take_evicted_edges) then returns the
    /// removed edges nearest to the roots.
    pub fn clear(&mut self) -> Pages {
        self.note_flush();
        self.clear_saves();
        let noted = self.take_evicted_edges();
        if self.protected_tokens > 0 {
            let evicted = self.evict(usize::MAX);
            self.put_noted_back(noted);
            return evicted.into();
        }
        let ids = self.iter_pages().collect();
        self.arena = Arena::new(self.page_size);
        self.roots = FxHashMap::default();
        self.root_names = FxHashMap::default();
        self.victims = Victims::default();
        self.fill_queues();
        if let Some(states) = &mut self.states {
            states.clear();
        }
        if let Some(windows) = &mut self.windows {
            windows.clear();
        }
        self.notes = self.notes.take().map(|_| Box::default());
        self.record_cleared();
        self.put_noted_back(noted);
        self.evictable_tokens = 0;
        Pages::adopt(ids, &self.ledger)
    }

    #[inline(never)]
    fn evict_more(&mut self, tokens: usize, first: Edge) -> EvictedPages {
        let mut n_tokens = first.len();
        let mut evicted = EvictedPages::of(first);
        while n_tokens < tokens {
            let Some(edge) = self.evict_leaf() else {
                break;
            };
            n_tokens += edge.len();
            evicted.push(edge);
        }
        evicted
    }

    #[inline(always)]
    fn evict_leaf(&mut self) -> Option<Edge> {
        let leaf = match self.next_victim() {
            Some(leaf) => leaf,
            None => self.next_in_queues()?,
        };
        if self.notes.is_some() {
            self.note_eviction(leaf);
        }
        self.record_removed(leaf);
        let removed = self.arena.remove_leaf(leaf);
        if let Some(states) = &mut self.states {
            states.drop_state(leaf);
        }
        if let Some(windows) = &mut self.windows {
            windows.drop_pages(leaf);
        }
        self.evictable_tokens -= removed.edge.len();
        self.recount_queued(leaf);
        if removed.shares_buffer || removed.is_only_child {
            self.tidy_above(removed.parent, removed.shares_buffer);
        }
        Some(removed.edge)
    }

    /// Adds a node to the eviction order if it can be evicted and is not in the order.
    pub(super) fn offer(&mut self, node: u32) {
        if self.policy.trend() == KeyTrend::Grows {
            self.enqueue(node);
        }
    }

    /// Adds a new leaf to the eviction order.
    #[inline(always)]
    pub(super) fn offer_new(&mut self, leaf: u32, usage: &NodeUse) {
        if self.queues.is_some() {
            self.enqueue(leaf);
        } else if self.policy.trend() == KeyTrend::Grows {
            self.arena[leaf].is_queued = true;
            let key = match self.states {
                None => self.policy.key(usage),
                Some(_) => self.rank(leaf),
            };
            self.victims.push((key, leaf));
        }
    }

    #[inline(never)]
    pub(super) fn enqueue(&mut self, index: u32) {
        let node = &mut self.arena[index];
        if node.is_evictable() && !node.is_queued {
            node.is_queued = true;
            node.is_used_since = false;
            // Leaves without a state are evicted first, under every policy.
            let is_resumable = self.is_resumable(index);
            match &mut self.queues {
                Some(queues) if is_resumable => queues.push(index),
                _ => {
                    let key = self.rank(index);
                    self.victims.push((key, index));
                }
            }
        }
    }

    #[inline(always)]
    pub(super) fn rank(&self, index: u32) -> EvictionKey {
        rank(&self.arena, self.states.as_deref(), &self.policy, index)
    }

    #[inline(never)]
    pub(super) fn rebuild_victims(&mut self) {
        self.order_is_stale = false;
        self.victims.clear();
        if let Some(queues) = &mut self.queues {
            queues.clear_order();
        }
        for index in self.arena.indices() {
            self.arena[index].is_queued = false;
            self.enqueue(index);
        }
    }

    #[inline(always)]
    fn next_victim(&mut self) -> Option<u32> {
        if self.victims.n_fetched == 0 {
            self.fetch_ahead();
        }
        loop {
            let (arena, states, policy) = (&self.arena, self.states.as_deref(), self.policy);
            let index = self.victims.pop(|index| {
                let node = &arena[index];
                let stays = node.is_evictable() && !node.is_used_since;
                stays.then(|| rank(arena, states, &policy, index))
            })?;
            let node = &mut self.arena[index];
            node.is_queued = false;
            if node.is_evictable() {
                if !node.is_used_since {
                    return Some(index);
                }
                self.enqueue(index);
            }
        }
    }

    /// Prefetches the next evictions: leaves unused for long are in no CPU cache, and these reads run in parallel.
    #[inline(never)]
    fn fetch_ahead(&mut self) {
        let ahead = self.victims.ahead();
        black_box(ahead.fold(0, |seen, index| seen ^ self.arena.preload(index)));
    }

    /// Cleans up after the removal of a leaf that was the last child of `parent` or shared its buffer.
    #[inline(never)]
    fn tidy_above(&mut self, parent: u32, shares_buffer: bool) {
        if shares_buffer {
            self.arena.cut_buffer(parent);
        }
        let above = &self.arena[parent];
        match (above.n_children, above.is_root()) {
            (0, true) => self.drop_root(parent),
            (0, false) => {
                self.recount_queued(parent);
                self.enqueue(parent);
            }
            _ => (),
        }
    }
}
