//! The arguments and results of the prefix cache's operations.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::namespace::Namespace;
use crate::pool::pages::{NodeLock, PageRun, Pages, RowWindows, WindowPages, WindowRun};
use crate::pool::state_pool::{SaveReason, SavedState};
use souffleur_base::ids::{PageId, StateSlot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveDemand {
    pub blocks: usize,
    pub states: usize,
    /// Change of the record of stored blocks.
    pub account: SaveAccount,
}

/// A change of the cache's record of stored blocks, made before any block is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveAccount {
    #[default]
    Keep,
    /// Starts over, as if the store were empty: the store lacks a block that counts as stored, and refuses all blocks
    /// after that one. Paths are queued again at their next publication.
    Forget,
    /// Drops the record and the queue, because the store has stopped. Nothing is queued until a demand starts over.
    End,
}

/// A block of a cached path that the store does not have, or the state at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsavedBlock {
    pub namespace: Namespace,
    /// Tokens of the path, to the end of the block or beyond.
    pub tokens: Arc<[u32]>,
    /// Number of blocks before this one.
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
    /// True if a state saved for `reason` may be dropped; `is_named` if a prompt of the plan has an anchor there.
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
    /// [freed](super::radix_tree::RadixTree::take_freed_states).
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
