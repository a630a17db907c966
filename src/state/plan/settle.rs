//! The part of a plan before admissions: publishes prefills, releases ended requests, pins prefixes.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::namespace::Namespace;
use crate::pool::pages::{NodeLock, Pages, RowWindows};
use crate::pool::state_pool::{OwnedState, SavedState};
use souffleur_base::ids::{IntakeId, RowId, SeqId, StepId};

#[derive(Debug)]
pub enum Settle {
    /// Publishes the tokens whose K/V a step's prefill wrote or is about to write; the sequence continues. The tokens
    /// stay in the cache if the request is cancelled later: the step writes their K/V in any case.
    Checkpoint(Box<SettleCheckpoint>),
    /// Releases the memory of a finished, aborted or retracted sequence.
    Release(Box<SettleRelease>),
    /// Releases the lock on the prefix of an admission that was undone.
    Unlock(NodeLock),
    Unpin(NodeLock),
}

impl Settle {
    /// True if the tree may get new tokens.
    pub fn publishes(&self) -> bool {
        match self {
            Self::Checkpoint(_) => true,
            Self::Release(release) => release.key.is_some(),
            Self::Unlock(_) | Self::Unpin(_) => false,
        }
    }
}

#[derive(Debug)]
pub struct PublishKey {
    pub namespace: Namespace,
    /// The K/V of the first `len` tokens is written or about to be. The tree publishes whole pages of them.
    pub tokens: Arc<[u32]>,
    pub len: usize,
    /// Length of the prompt, which becomes a separate node of the tree.
    pub prompt_len: usize,
    /// Length of the prefix whose tree nodes have already counted this request as a hit.
    pub inserted_tokens: usize,
    pub priority: i64,
    /// The step that writes the last of `tokens`.
    pub written_by: StepId,
    /// For models with window layers: positions at which other prompts are likely to diverge from this one.
    pub boundaries: SmallVec<[usize; 4]>,
    /// Length of the prefix that the KV store has.
    pub stored_tokens: usize,
}

#[derive(Debug)]
pub struct SettleCheckpoint {
    pub seq: SeqId,
    pub intake: IntakeId,
    pub key: PublishKey,
    /// Pages of the sequence that the tree owns.
    pub protected_pages: usize,
    /// The sequence's private pages after the protected ones.
    pub private: Pages,
    pub lock: NodeLock,
    /// Copies of the sequence's recurrent state that the steps planned so far make.
    pub states: Vec<SavedState>,
    /// For models with window layers: the sequence's own window pages.
    pub windows: Option<Box<RowWindows>>,
}

#[derive(Debug)]
pub struct SettleRelease {
    pub seq: SeqId,
    pub intake: IntakeId,
    pub row: Option<RowId>,
    /// The part to publish; `None` after an abort or a retraction.
    pub key: Option<PublishKey>,
    pub protected_pages: usize,
    pub private: Pages,
    pub lock: NodeLock,
    /// Copies of the sequence's recurrent state at positions within the key.
    pub states: Vec<SavedState>,
    /// Other states of the sequence, to be freed.
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
