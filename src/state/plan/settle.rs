//! The parts of a plan before admissions: publish prefills, release ended requests, pin prefixes.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::namespace::Namespace;
use crate::pool::pages::{NodeLock, Pages, RowWindows};
use crate::pool::state_pool::{OwnedState, SavedState};
use souffleur_base::ids::{RowId, SeqId, StepId};

#[derive(Debug)]
pub enum Settle {
    /// Publishes the tokens that a prefill extent wrote (or is about to write); the sequence continues. They stay
    /// in the cache if its request is cancelled later: the step writes their K/V in any case.
    Checkpoint(Box<SettleCheckpoint>),
    /// Ends a sequence's hold on memory: finished, aborted or retracted.
    Release(Box<SettleRelease>),
    /// Releases a lock: the prefix of an admission that was undone.
    Unlock(NodeLock),
    Unpin(NodeLock),
}

#[derive(Debug)]
pub struct PublishKey {
    pub namespace: Namespace,
    /// Tokens whose K/V is written, page-floored by the tree.
    pub tokens: Arc<[u32]>,
    pub len: usize,
    /// Length of the prompt: it becomes a separate node.
    pub prompt_len: usize,
    /// Tokens of this request that counted as a hit already.
    pub inserted_tokens: usize,
    pub priority: i64,
    /// The step that writes the last of `tokens`.
    pub written_by: StepId,
    /// Positions at which other prompts are likely to diverge from this one, where layers have windows.
    pub boundaries: SmallVec<[usize; 4]>,
    /// Tokens from the beginning on that the store has.
    pub stored_tokens: usize,
}

#[derive(Debug)]
pub struct SettleCheckpoint {
    pub seq: SeqId,
    pub key: PublishKey,
    /// Pages of the sequence that the tree owns.
    pub protected_pages: usize,
    /// The sequence's private pages after them.
    pub private: Pages,
    pub lock: NodeLock,
    /// Copies of the sequence's state that the steps so far make.
    pub states: Vec<SavedState>,
    /// The sequence's own window pages, where layers have windows.
    pub windows: Option<Box<RowWindows>>,
}

#[derive(Debug)]
pub struct SettleRelease {
    pub seq: SeqId,
    pub row: Option<RowId>,
    /// The part to publish; `None` after an abort or a retraction.
    pub key: Option<PublishKey>,
    pub protected_pages: usize,
    pub private: Pages,
    pub lock: NodeLock,
    /// States of the sequence within the key.
    pub states: Vec<SavedState>,
    /// Other states of the sequence.
    pub returned_states: Vec<OwnedState>,
    pub windows: Option<Box<RowWindows>>,
}

#[derive(Debug, Clone)]
pub struct PinDemand {
    pub pin: u64,
    pub namespace: Namespace,
    pub tokens: Arc<[u32]>,
}

#[derive(Debug)]
pub struct Pinned {
    pub pin: u64,
    pub lock: NodeLock,
    /// Tokens of the prefix that are in the cache and now stay there.
    pub tokens: usize,
}
