//! The radix tree as a prefix cache: its implementation of the `PrefixCache` trait.

use rustc_hash::FxHashMap;

use super::RadixTree;
use super::arena::Arena;
use super::evict::Victims;
use crate::cache::changes::CacheChange;
use crate::cache::eviction::EvictionPolicy;
use crate::cache::namespace::Namespace;
use crate::cache::prefix_cache::{
    Checkpoint, Checkpointed, LockedPrefix, PrefixCache, SaveCounts, SaveDemand, Thinning,
    UnsavedBlock,
};
use crate::cache::prefix_history::{Departure, EvictedEdge};
use crate::pool::pages::{EvictedPages, NodeLock, PageSize, Pages, WindowPages};
use crate::pool::state_pool::OwnedState;
use souffleur_base::ids::{PageId, StateSlot};

impl PrefixCache for RadixTree {
    fn lock_prefix(&mut self, namespace: &Namespace, tokens: &[u32]) -> LockedPrefix {
        let (node, kv_tokens) = self.match_and_split(namespace, tokens);
        let (node, tokens) = self.usable(node, kv_tokens);
        self.value_windows(node);
        LockedPrefix {
            lock: self.lock_node(node),
            pages: self.run_behind(node, 0),
            windows: self.window_run(node),
            tokens,
            kv_tokens,
        }
    }

    fn unlock(&mut self, lock: NodeLock) {
        self.unlock_node(lock);
    }

    fn touch_prefix(&mut self, namespace: &Namespace, tokens: &[u32]) -> usize {
        let (node, tokens) = self.match_and_split(namespace, tokens);
        self.usable(node, tokens).1
    }

    fn touch_paths(
        &mut self,
        keys: &mut dyn Iterator<Item = (&Namespace, &[u32])>,
    ) -> Vec<(usize, Vec<u32>)> {
        let touched: Vec<(u32, usize)> = keys
            .map(|(namespace, tokens)| self.match_and_split(namespace, tokens))
            .collect();
        let paths = touched.into_iter();
        paths
            .map(|(node, tokens)| {
                let (node, tokens) = self.usable(node, tokens);
                (tokens, self.path_to(node))
            })
            .collect()
    }

    fn set_eviction_policy(&mut self, policy: EvictionPolicy) {
        let identity = |policy: EvictionPolicy| (policy.name(), policy.parameters());
        if identity(policy) == identity(self.policy) {
            return;
        }
        self.policy = policy;
        self.fill_queues();
        self.rebuild_victims();
    }

    fn peek(&self, namespace: &Namespace, tokens: &[u32]) -> usize {
        let Some(&root) = self.roots.get(namespace) else {
            return 0;
        };
        self.peek_from(root, tokens)
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint<'_>) -> Checkpointed {
        self.publish(checkpoint)
    }

    fn evict(&mut self, tokens: usize) -> EvictedPages {
        self.evict_leaves(tokens)
    }

    fn take_evicted_edges(&mut self) -> Vec<EvictedEdge> {
        self.take_noted()
    }

    fn departure(
        &self,
        namespace: &Namespace,
        lock: &NodeLock,
        tokens: &[u32],
        matched: (usize, usize),
        match_limit: usize,
    ) -> Option<Box<Departure>> {
        self.departure_at(namespace, lock, tokens, matched, match_limit)
    }

    fn note_changes(&mut self) {
        self.begin_changes();
    }

    fn take_changes(&mut self, into: &mut Vec<CacheChange>) {
        self.take_noted_changes(into);
    }

    fn has_more_to_tell(&self) -> bool {
        self.is_telling_again()
    }

    fn keeps_states(&self) -> bool {
        self.states.is_some()
    }

    fn hold_state(&mut self, lock: &NodeLock) -> Option<StateSlot> {
        self.hold_state_at(lock)
    }

    fn forget_held_state(&mut self, lock: &NodeLock) {
        self.forget_source(lock);
    }

    fn use_state(&mut self, lock: &NodeLock, anchors: &[u32]) {
        self.use_state_at(lock, anchors);
    }

    fn forget_used_states(&mut self) {
        self.forget_sources();
    }

    fn pin_state(&mut self, lock: &NodeLock, most: usize) {
        self.pin_state_at(lock, most);
    }

    fn unpin_state(&mut self, lock: &NodeLock) {
        self.unpin_state_at(lock);
    }

    fn droppable_states(&self, thinning: Thinning) -> usize {
        Self::droppable_states(self, thinning)
    }

    fn thin_states(&mut self, n: usize, thinning: Thinning) {
        Self::thin_states(self, n, thinning);
    }

    fn cached_states(&self) -> usize {
        self.states.as_ref().map_or(0, |states| states.len())
    }

    fn take_freed_states(&mut self) -> Vec<OwnedState> {
        self.take_freed()
    }

    fn for_each_state(&self, visit: &mut dyn FnMut(StateSlot)) {
        self.state_slots().for_each(visit);
    }

    fn evictable_windows(&self) -> usize {
        let windows = self.windows.as_ref();
        windows.map_or(0, |windows| windows.evictable_pages())
    }

    fn protected_windows(&self) -> usize {
        let windows = self.windows.as_ref();
        windows.map_or(0, |windows| windows.protected_pages())
    }

    fn evict_windows(&mut self, n_pages: usize) {
        self.evict_window_pages(n_pages);
    }

    fn take_freed_windows(&mut self) -> WindowPages {
        self.take_freed_window_pages()
    }

    fn for_each_window_page(&self, visit: &mut dyn FnMut(PageId)) {
        let windows = self.windows.iter();
        windows
            .flat_map(|windows| windows.iter_pages())
            .for_each(visit);
    }

    fn take_unsaved(&mut self, demand: SaveDemand) -> Vec<UnsavedBlock> {
        self.take_unsaved_blocks(demand)
    }

    fn save_counts(&self) -> SaveCounts {
        self.counts_of_saves()
    }

    fn clear(&mut self) -> Pages {
        self.note_flush();
        self.clear_saves();
        if self.protected_tokens > 0 {
            let noted = self.take_noted();
            let evicted = self.evict_leaves(usize::MAX);
            self.put_noted_back(noted);
            return evicted.into();
        }
        let noted = self.take_noted();
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
        self.note_cleared();
        self.put_noted_back(noted);
        self.evictable_tokens = 0;
        Pages::adopt(ids, &self.ledger)
    }

    fn evictable_size(&self) -> usize {
        self.evictable_tokens
    }

    fn protected_size(&self) -> usize {
        self.protected_tokens
    }

    fn n_nodes(&self) -> usize {
        self.arena.n_live() - self.roots.len()
    }

    fn page_size(&self) -> PageSize {
        self.page_size
    }

    fn for_each_page(&self, visit: &mut dyn FnMut(PageId)) {
        self.iter_pages().for_each(visit);
    }

    fn check_integrity(&self) -> Result<(), String> {
        self.check_all()
    }
}
