//! The arguments and results of the prefix cache's operations.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::namespace::Namespace;
use crate::pool::pages::{NodeLock, PageRun, Pages, RowWindows, WindowPages, WindowRun};
use crate::pool::state_pool::{SaveReason, SavedState};
use souffleur_base::ids::{PageId, StateSlot};

/// The numbers of unsaved blocks and states that the cache should return, and a change to make first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveDemand {
    pub blocks: usize,
    pub states: usize,
    pub account: StoreRecordChange,
}

/// A change of the cache's record of the blocks in the KV store, made before the cache returns unsaved blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreRecordChange {
    #[default]
    Keep,
    /// Starts over as if the store were empty. Needed if the store lacks a block that is recorded as stored, because it
    /// rejects all blocks after a missing one. Paths are queued again at their next publication.
    Forget,
    /// Drops the record and the queue, because the store has stopped. Nothing is queued until the next `Forget`.
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
    /// The block's keys and values, on these pages.
    Pages(SmallVec<[PageId; 4]>),
    /// The state after the block's last token.
    State(StateSlot),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveCounts {
    /// Paths whose blocks the cache has not returned yet.
    pub queued: usize,
    /// Tokens that were evicted before they could be saved, and tokens of paths that the full queue rejected.
    pub dropped_tokens: u64,
}

#[derive(Debug, Default)]
#[must_use]
pub struct LockedPrefix {
    /// Protects `pages` from eviction and must be released. It is on the root if nothing matched.
    pub lock: NodeLock,
    pub pages: PageRun,
    /// The window pages that a sequence resuming after the prefix reads; empty without sliding-window layers.
    pub windows: WindowRun,
    /// Length of the prefix in tokens, a multiple of the page size.
    pub tokens: usize,
    /// Tokens with K/V in the cache: more than `tokens` if the state to resume from, or window pages, are missing.
    pub kv_tokens: usize,
}

/// The cached states that may be dropped to free their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinning {
    /// All states that no pin keeps. Used to count the slots that later plans can get.
    Later,
    /// States in [`Self::Later`] from which no row of the plan starts. Used to free a slot for a row's private state.
    Any,
    /// States in [`Self::Any`] where no prompt of the plan has an anchor (likely divergence). Used to free a slot for a
    /// copy.
    Unnamed,
    /// States in [`Self::Unnamed`] on the grid, which long prefills save at regular distances.
    Grid,
}

impl Thinning {
    /// True if a state saved for `reason` may be dropped; `is_anchored` if a prompt of the plan has an anchor there.
    pub fn drops(self, reason: SaveReason, is_anchored: bool) -> bool {
        match self {
            Self::Later | Self::Any => true,
            Self::Unnamed => !is_anchored,
            Self::Grid => !is_anchored && reason == SaveReason::Grid,
        }
    }
}

#[derive(Debug)]
pub struct Checkpoint<'a> {
    /// The namespace in which the K/V may be reused.
    pub namespace: &'a Namespace,
    /// All tokens whose KV is written, or will be by queued steps. The last page may be incomplete.
    pub tokens: &'a [u32],
    /// An array that starts with `tokens`, if the cache may keep it instead of a copy.
    pub owner: Option<&'a Arc<[u32]>>,
    /// Length of the prompt; more than `tokens` as long as prefill is not complete.
    pub prompt_tokens: usize,
    /// Pages of the sequence that the cache owns already, under `lock`.
    pub protected_pages: usize,
    /// The pages after the protected ones. May be more than the tokens need.
    pub private: Pages,
    /// Protects the first `protected_pages` pages.
    pub lock: NodeLock,
    /// Tokens of this request that an earlier checkpoint has counted as hits.
    pub inserted_tokens: usize,
    /// The request's priority. The prompt is published with a priority one higher.
    pub priority: i64,
    /// States of the sequence within `tokens`. Those that the cache does not keep are
    /// [freed](super::radix_tree::RadixTree::take_freed_states).
    pub states: Vec<SavedState>,
    /// The window pages that the sequence still owns; `None` without sliding-window layers.
    pub windows: Option<Box<RowWindows>>,
    /// Positions at which other prompts are likely to diverge: the window pages before these are evicted later.
    pub boundaries: &'a [usize],
    /// How many of `tokens`' first tokens the store has, in whole blocks; 0 without a store.
    pub stored_tokens: usize,
}

#[derive(Debug)]
#[must_use]
pub struct Checkpointed {
    /// Protects the first `protected_pages` pages; replaces the checkpoint's lock.
    pub lock: NodeLock,
    /// Pages private to the sequence: the partly filled last one and those allocated after it.
    pub private: Pages,
    /// The sequence's pages whose content the cache already had, for the caller to free.
    pub duplicates: Pages,
    /// The cache's pages that replace the sequence's pages from the old to the new `protected_pages`.
    pub remap: PageRun,
    pub protected_pages: usize,
    /// For the request's next checkpoint.
    pub inserted_tokens: usize,
    pub windows: Option<Box<CheckpointedWindows>>,
}

#[derive(Debug, Default)]
pub struct CheckpointedWindows {
    pub own: RowWindows,
    /// The sequence's window pages whose content the cache already had.
    pub duplicates: WindowPages,
    /// The cache's window pages that replace the sequence's, if any of these are duplicates.
    pub remap: WindowRun,
}
