//! The parts of a plan before admissions: publish prefills, release ended requests, pin prefixes.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{RowId, SeqId, StepId};
use crate::state::cache::namespace::Namespace;
use crate::state::pool::pages::{NodeLock, Pages, RowWindows};
use crate::state::pool::state_pool::{OwnedState, SavedState};

/// Something to settle before the next step is planned.
#[derive(Debug)]
pub enum Settle {
    /// Publishes the tokens that a prefill extent wrote (or is about to write); the sequence continues. They stay
    /// in the cache if its request is cancelled later: the step writes their K/V in any case.
    Checkpoint(Box<SettleCheckpoint>),
    /// Ends a sequence's hold on memory: finished, aborted or retracted.
    Release(Box<SettleRelease>),
    /// Releases a lock: the prefix of an admission that was undone.
    Unlock(NodeLock),
    /// Releases a host's pin.
    Unpin(NodeLock),
}

/// The part of a sequence that the tree should keep.
#[derive(Debug)]
pub struct PublishKey {
    /// The namespace that shares the prefix.
    pub namespace: Namespace,
    /// Tokens whose K/V is written, page-floored by the tree.
    pub tokens: Arc<[u32]>,
    /// How many of `tokens` are published.
    pub len: usize,
    /// Length of the prompt: it becomes a separate node.
    pub prompt_len: usize,
    /// Tokens of this request that counted as a hit already.
    pub inserted_tokens: usize,
    /// The request's priority, for priority eviction.
    pub priority: i64,
    /// The step that writes the last of them.
    pub written_by: StepId,
    /// Positions at which other prompts are likely to diverge from this one, where layers have windows.
    pub boundaries: SmallVec<[usize; 4]>,
    /// Tokens from the beginning on that the store has.
    pub stored_tokens: usize,
}

/// A checkpoint of an unfinished sequence.
#[derive(Debug)]
pub struct SettleCheckpoint {
    /// The sequence.
    pub seq: SeqId,
    /// The part to publish.
    pub key: PublishKey,
    /// Pages of the sequence that the tree owns.
    pub protected_pages: usize,
    /// The sequence's private pages after them.
    pub private: Pages,
    /// Its lock.
    pub lock: NodeLock,
    /// Copies of its state that the steps so far make.
    pub states: Vec<SavedState>,
    /// Its own window pages, where layers have windows.
    pub windows: Option<Box<RowWindows>>,
}

/// The end of a sequence's hold on memory.
#[derive(Debug)]
pub struct SettleRelease {
    /// The sequence.
    pub seq: SeqId,
    /// Its row, if it has one.
    pub row: Option<RowId>,
    /// The part to publish; `None` after an abort or a retraction.
    pub key: Option<PublishKey>,
    /// Pages of the sequence that the tree owns.
    pub protected_pages: usize,
    /// The sequence's private pages after them.
    pub private: Pages,
    /// Its lock.
    pub lock: NodeLock,
    /// Its states within the key.
    pub states: Vec<SavedState>,
    /// Its other states.
    pub returned_states: Vec<OwnedState>,
    /// Its own window pages, where layers have windows.
    pub windows: Option<Box<RowWindows>>,
}

/// A host's request to keep a prefix in memory.
#[derive(Debug, Clone)]
pub struct PinDemand {
    /// Number of the pin.
    pub pin: u64,
    /// The namespace that shares the prefix.
    pub namespace: Namespace,
    /// The prefix.
    pub tokens: Arc<[u32]>,
}

/// A pin as granted.
#[derive(Debug)]
pub struct Pinned {
    /// Number of the pin.
    pub pin: u64,
    /// The lock that keeps it.
    pub lock: NodeLock,
    /// Tokens of the prefix that are in the cache and now stay there.
    pub tokens: usize,
}
