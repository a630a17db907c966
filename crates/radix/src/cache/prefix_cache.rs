//! The interface of a prefix cache to the RadixCache actor, with its arguments and results.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::changes::CacheChange;
use crate::cache::eviction::EvictionPolicy;
use crate::cache::namespace::Namespace;
use crate::cache::prefix_history::{Departure, EvictedEdge};
use crate::pool::pages::{
    EvictedPages, NodeLock, PageRun, PageSize, Pages, RowWindows, WindowPages, WindowRun,
};
use crate::pool::state_pool::{OwnedState, SaveReason, SavedState};
use souffleur_base::ids::{PageId, StateSlot};

/// A cache of computed KV by token prefix.
///
/// Sizes are in tokens. Matches and keys are cut to whole pages.
pub trait PrefixCache: Send {
    /// Matches and locks in one: returns the longest cached prefix of `tokens`, which stays cached until
    /// the lock is handed to [`unlock`](Self::unlock) or [`checkpoint`](Self::checkpoint).
    ///
    /// Mutates: touches the matched path, may split a node, takes a lock. Nothing need be locked before.
    fn lock_prefix(&mut self, namespace: &Namespace, tokens: &[u32]) -> LockedPrefix;

    /// Releases a lock. Nodes that it alone protected become evictable.
    ///
    /// Mutates lock counts only: no touch. A lock on the root does nothing.
    fn unlock(&mut self, lock: NodeLock);

    /// Matches as [`lock_prefix`](Self::lock_prefix) does, but takes no lock: returns the length only.
    ///
    /// Mutates: touches the matched path, may split a node. The length may be stale after any other call.
    fn touch_prefix(&mut self, namespace: &Namespace, tokens: &[u32]) -> usize;

    /// Touches each key in turn as [`touch_prefix`](Self::touch_prefix) does and returns, for each, its length and the
    /// nodes from the top down to its end, as they are after the last key. A cache without nodes names none.
    fn touch_paths(
        &mut self,
        keys: &mut dyn Iterator<Item = (&Namespace, &[u32])>,
    ) -> Vec<(usize, Vec<u32>)> {
        keys.map(|(namespace, tokens)| (self.touch_prefix(namespace, tokens), Vec::new()))
            .collect()
    }

    /// Evicts by another policy from now on. A cache that does not evict has nothing to change.
    fn set_eviction_policy(&mut self, _policy: EvictionPolicy) {}

    /// How much of `tokens` is cached. Mutates nothing: no touch, no split, no lock.
    fn peek(&self, namespace: &Namespace, tokens: &[u32]) -> usize;

    /// Publishes the computed tokens of a sequence and moves its lock to their end.
    ///
    /// Mutates: touches, splits, adds nodes, moves the lock. `checkpoint.lock` must protect the sequence's
    /// first `protected_pages` pages. Nothing is evicted.
    ///
    /// # Panics
    /// If `protected_pages` and `private` together do not reach to the end of the page-floored tokens, or the lock does
    /// not protect the former (caller bugs).
    fn checkpoint(&mut self, checkpoint: Checkpoint<'_>) -> Checkpointed;

    /// Evicts whole unlocked leaves in the policy's order until at least `tokens` are freed or none is left; a
    /// parent that becomes a leaf joins within the call. May free more than asked; `evict(0)` does nothing.
    ///
    /// Mutates: removes nodes. Locked paths are never touched.
    fn evict(&mut self, tokens: usize) -> EvictedPages;

    /// The tokens of nodes that were evicted, or cleared, since the last call, from a cache that diagnoses misses.
    fn take_evicted_edges(&mut self) -> Vec<EvictedEdge> {
        Vec::new()
    }

    /// Describes the cache at the miss point of a prompt that was just matched and locked. `matched` counts its tokens
    /// that come from the cache, and those that have K/V there. `None` if the cache does not diagnose misses. Mutates
    /// nothing.
    fn departure(
        &self,
        _namespace: &Namespace,
        _lock: &NodeLock,
        _tokens: &[u32],
        _matched: (usize, usize),
        _match_limit: usize,
    ) -> Option<Box<Departure>> {
        None
    }

    /// Makes the cache record node changes for [`take_changes`](Self::take_changes): first a `Cleared`, then all nodes
    /// that it holds, a part per call, together with every new change. Another call starts over. A cache without nodes
    /// records nothing.
    fn note_changes(&mut self) {}

    /// Appends the changes since the last call, in the order in which they happened. A caller that has them recorded
    /// must take them after every plan: the cache keeps them until then.
    fn take_changes(&mut self, _into: &mut Vec<CacheChange>) {}

    /// Whether [`take_changes`](Self::take_changes) has yet to report a part of the cache's nodes.
    fn has_more_to_tell(&self) -> bool {
        false
    }

    /// Whether prefixes are cached with the states of layers that keep some: a match then ends where there is one.
    fn keeps_states(&self) -> bool {
        false
    }

    /// The state at the end of a prefix that was just locked, for a row that may start from it.
    ///
    /// Mutates: it is not dropped before [`forget_used_states`](Self::forget_used_states).
    fn hold_state(&mut self, _lock: &NodeLock) -> Option<StateSlot> {
        None
    }

    /// No row starts from the state that was [held](Self::hold_state) after all.
    fn forget_held_state(&mut self, _lock: &NodeLock) {}

    /// A row starts from the state that was [held](Self::hold_state). `anchors` are positions at which other prompts
    /// are likely to diverge from the row's. All states of the plan are held by now.
    ///
    /// Mutates: the state is young now, and so are those of the prefix at the anchors, which are not dropped for a copy
    /// before [`forget_used_states`](Self::forget_used_states).
    fn use_state(&mut self, _lock: &NodeLock, _anchors: &[u32]) {}

    /// The plan is made: states that rows start from may be dropped, since only a later step overwrites them.
    fn forget_used_states(&mut self) {}

    /// Keeps the state at the end of a pinned prefix, if no more than `most` are kept for pins then.
    fn pin_state(&mut self, _lock: &NodeLock, _most: usize) {}

    /// Undoes [`pin_state`](Self::pin_state), before the lock is released.
    fn unpin_state(&mut self, _lock: &NodeLock) {}

    /// How many states [`thin_states`](Self::thin_states) could drop.
    fn droppable_states(&self, _thinning: Thinning) -> usize {
        0
    }

    /// Drops `n` states, or as many as it can; their pages stay.
    fn thin_states(&mut self, _n: usize, _thinning: Thinning) {}

    fn cached_states(&self) -> usize {
        0
    }

    /// The states that left the cache since the last call.
    fn take_freed_states(&mut self) -> Vec<OwnedState> {
        Vec::new()
    }

    /// Calls `visit` with the slot of every cached state, in no order: for accounts in tests and dumps.
    fn for_each_state(&self, _visit: &mut dyn FnMut(StateSlot)) {}

    /// Window pages that [`evict_windows`](Self::evict_windows) could free.
    fn evictable_windows(&self) -> usize {
        0
    }

    /// Window pages that locks keep.
    fn protected_windows(&self) -> usize {
        0
    }

    /// Drops at least `n_pages` window pages, or as many as no lock keeps; the pages that they belong to stay.
    fn evict_windows(&mut self, _n_pages: usize) {}

    /// The window pages that left the cache since the last call.
    fn take_freed_windows(&mut self) -> WindowPages {
        WindowPages::empty()
    }

    /// Calls `visit` with every cached window page, in no order: for accounts in tests and dumps.
    fn for_each_window_page(&self, _visit: &mut dyn FnMut(PageId)) {}

    /// Takes cached blocks that the store does not have, each path's in order from its start, and the states at their
    /// ends. They count as stored from then on. Empty if the cache does not track the store's blocks.
    ///
    /// Mutates nothing else: no touch, no split, no lock. The same plan may still evict the pages and drop the states.
    fn take_unsaved(&mut self, _demand: SaveDemand) -> Vec<UnsavedBlock> {
        Vec::new()
    }

    /// The blocks to be saved, and those that were evicted before they could be.
    fn save_counts(&self) -> SaveCounts {
        SaveCounts::default()
    }

    /// Empties the cache and returns its pages. Locked paths stay: to flush everything, call it when
    /// [`protected_size`](Self::protected_size) is 0. [`take_evicted_edges`](Self::take_evicted_edges) then returns the
    /// first pages that it held.
    fn clear(&mut self) -> Pages;

    /// Tokens that [`evict`](Self::evict) could free.
    fn evictable_size(&self) -> usize;

    fn protected_size(&self) -> usize;

    fn total_size(&self) -> usize {
        self.evictable_size() + self.protected_size()
    }

    /// Number of nodes that hold tokens.
    fn n_nodes(&self) -> usize;

    fn page_size(&self) -> PageSize;

    /// True when nothing is ever cached, so that policies which order by cached length make no sense.
    fn is_disabled(&self) -> bool {
        false
    }

    /// Calls `visit` with every cached page, in no order: for page-by-page accounts in tests and dumps.
    fn for_each_page(&self, visit: &mut dyn FnMut(PageId));

    /// Walks everything and compares it with the incremental counts. O(size of the cache).
    ///
    /// # Errors
    /// A sentence that names the first thing that is wrong.
    fn check_integrity(&self) -> Result<(), String>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveDemand {
    pub blocks: usize,
    pub states: usize,
    /// Change of the account of the store's blocks.
    pub account: SaveAccount,
}

/// A change of a cache's account of the store's blocks, before it takes any block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveAccount {
    #[default]
    Keep,
    /// Starts over, as if the store were empty: it skipped a block that counts as stored, and it refuses all blocks
    /// after such a block. Paths are queued again at their next publication.
    Forget,
    /// Drops it and the queue, because the store has stopped. Nothing is queued until a demand starts over.
    End,
}

/// A block of a cached path that the store does not have, or the state at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsavedBlock {
    pub namespace: Namespace,
    /// Tokens of the path, to the end of the block or beyond.
    pub tokens: Arc<[u32]>,
    /// How many blocks are before it.
    pub block: u32,
    pub part: UnsavedPart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnsavedPart {
    /// The keys and values of its tokens, on these pages.
    Pages(SmallVec<[PageId; 4]>),
    /// The state after its last token.
    State(StateSlot),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveCounts {
    /// Paths that wait for their blocks to be taken.
    pub queued: usize,
    /// Tokens that were evicted before they were taken, and tokens of paths that the full queue rejected.
    pub dropped_tokens: u64,
}

#[derive(Debug, Default)]
#[must_use]
pub struct LockedPrefix {
    /// Keeps `pages` where they are. Must be released; on the root when nothing matched.
    pub lock: NodeLock,
    pub pages: PageRun,
    /// The window pages of the prefix that a sequence resuming there sees, where layers have windows.
    pub windows: WindowRun,
    /// Length of the prefix in tokens, a multiple of the page size.
    pub tokens: usize,
    /// Tokens with K/V in the cache: more than `tokens` where the state to resume from or window pages are missing.
    pub kv_tokens: usize,
}

/// The states that may be dropped for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinning {
    /// All states without a pin: those that later plans can have.
    Later,
    /// Of these, states that no row of the plan starts from: for a row's private state.
    Any,
    /// Of these, states at which no prompt of the plan has an anchor: for a copy.
    Unnamed,
    /// Of these, only states of the grid.
    Grid,
}

impl Thinning {
    /// Whether it includes a state that was saved for `reason`, and that a prompt of the plan names or not.
    pub fn takes(self, reason: SaveReason, is_named: bool) -> bool {
        match self {
            Self::Later | Self::Any => true,
            Self::Unnamed => !is_named,
            Self::Grid => !is_named && reason == SaveReason::Grid,
        }
    }
}

#[derive(Debug)]
pub struct Checkpoint<'a> {
    /// The namespace that may reuse it.
    pub namespace: &'a Namespace,
    /// Every token whose KV is written or will be by the steps already queued; not cut to pages.
    pub tokens: &'a [u32],
    /// An array that starts with `tokens`, if the cache may keep it instead of a copy.
    pub owner: Option<&'a Arc<[u32]>>,
    /// How many of `tokens`' first tokens are the prompt; may be more than there are so far.
    pub prompt_tokens: usize,
    /// Pages of the sequence that the cache owns already, under `lock`.
    pub protected_pages: usize,
    /// The pages after the protected ones. May be more than the tokens need.
    pub private: Pages,
    /// Protects the first `protected_pages` pages.
    pub lock: NodeLock,
    /// Tokens of this request that an earlier checkpoint has counted as hits.
    pub inserted_tokens: usize,
    /// The request's priority; the prompt is published one higher.
    pub priority: i64,
    /// States of the sequence within `tokens`, for a cache that keeps them. The rest are
    /// [freed](PrefixCache::take_freed_states).
    pub states: Vec<SavedState>,
    /// The window pages after the cache's that the sequence still has; `None` where layers have no windows.
    pub windows: Option<Box<RowWindows>>,
    /// Positions at which other prompts are likely to diverge from this one, for the window pages before them.
    pub boundaries: &'a [usize],
    /// How many of `tokens`' first tokens the store has, in whole blocks; 0 without a store.
    pub stored_tokens: usize,
}

#[derive(Debug)]
#[must_use]
pub struct Checkpointed {
    /// Protects the first `protected_pages` pages; replaces the lock that went in.
    pub lock: NodeLock,
    /// Pages private to the sequence: the partly filled last one and those allocated after it.
    pub private: Pages,
    /// Pages whose content the cache held already: computed twice, to be freed once.
    pub duplicates: Pages,
    /// The cache's pages for the sequence's pages `old protected_pages..protected_pages`.
    pub remap: PageRun,
    pub protected_pages: usize,
    /// Goes into the request's next checkpoint.
    pub inserted_tokens: usize,
    /// The window pages, where layers have windows.
    pub windows: Option<Box<CheckpointedWindows>>,
}

#[derive(Debug, Default)]
pub struct CheckpointedWindows {
    pub own: RowWindows,
    /// Pages whose content the cache held already.
    pub duplicates: WindowPages,
    /// The cache's pages that the sequence sees, if some of its own are among the duplicates.
    pub remap: WindowRun,
}
