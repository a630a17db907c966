//! The requests to the KV store's I/O thread, and its answers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::HostBlock;
use souffleur_base::ids::{SeqId, Ticket};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::tiers::{BlockPlace, Keys};

/// Looks up the blocks of a prompt that the store has. Answered by [`Answer::Found`].
#[derive(Clone)]
pub struct Find {
    pub seq: SeqId,
    pub namespace: Namespace,
    pub tokens: Arc<[u32]>,
    /// The number of leading blocks that the prefix tree already has.
    pub from: usize,
    /// The executor's prefill rate in tokens per second; `None` before the first measurement.
    pub prefill_tokens_per_s: Option<f64>,
}

/// Requests to load blocks. Answered once, by [`Answer::Fetched`] or [`Answer::Late`], by the deadline.
#[derive(Clone)]
pub struct Fetch {
    pub seq: SeqId,
    pub ticket: Ticket,
    /// The blocks of the prompt, as [`Answer::Found`] gave them.
    pub path: Arc<[BlockPlace]>,
    /// The requested blocks. If memory is short or blocks were evicted, fewer are loaded: then request the rest.
    pub blocks: Range<usize>,
    pub timeout: Duration,
}

/// Requests to write a filled block. Answered by [`Answer::Committed`].
#[derive(Debug)]
pub struct Commit {
    pub ticket: Ticket,
    /// The block's key, and the key of its predecessor.
    pub place: BlockPlace,
    pub block: HostBlock,
}

/// Why a request was refused. A refused request gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store is starting, or off.
    #[error("the KV store is not ready, or has stopped")]
    NotServing,
    #[error("the KV store request queue is full")]
    Full,
}

#[derive(Clone, Debug)]
pub enum TierState {
    /// The fingerprint is not known yet: weights are being read.
    Identifying,
    /// The index of the records on the disk is being rebuilt.
    Recovering,
    Serving {
        keys: Keys,
        /// Records on the disk now.
        records: usize,
    },
    /// The store is off, until another one is started; the reason is for the operator.
    Off { reason: String, panicked: bool },
}

/// Answers of the I/O thread, and its changes of state. Each request is answered once, in any order.
pub enum Answer {
    /// The store has entered another state; the first is [`TierState::Identifying`].
    State(TierState),
    Found {
        seq: SeqId,
        /// The leading full blocks of the prompt that are in the store, for [`Fetch`].
        path: Arc<[BlockPlace]>,
        /// Leading blocks after which the sequence can resume: fewer than `path` if states or windows are missing.
        blocks: usize,
        /// `blocks` if loading those after `from` is faster than computing them, else 0.
        worth: usize,
        /// Why the next block is missing, if the store dropped it recently.
        miss: Option<StoredMiss>,
    },
    Fetched {
        seq: SeqId,
        ticket: Ticket,
        loaded: Loaded,
        /// Why fewer blocks than requested were loaded.
        short: Option<Short>,
    },
    /// The fetch loaded no block.
    Late {
        seq: SeqId,
        ticket: Ticket,
        reason: Short,
    },
    /// The outcome of the commit with this ticket.
    Committed { ticket: Ticket, outcome: Outcome },
}

/// Loaded blocks with verified checksums. Dropping them returns the buffers.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The indices of the loaded blocks in the path: at least one block, from the first requested one on.
    pub blocks: Range<usize>,
    /// Keys and values of the blocks, in order.
    pub kv: Vec<HostBlock>,
    /// Window records of the last blocks, in order: those of [`Needs::window_blocks`] at `blocks.end` that are in
    /// `blocks`.
    ///
    /// [`Needs::window_blocks`]: souffleur_state::tiers::Needs::window_blocks
    pub window: Vec<HostBlock>,
    /// The state after the last block, if the model has layers with states.
    pub state: Option<HostBlock>,
}

/// Why a fetch loaded fewer blocks than requested, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    Deadline,
    /// No buffer is free for another block.
    Memory,
    /// A record was damaged or could not be read.
    Damaged,
    /// A record was evicted after the lookup.
    Evicted,
    /// The caller cancelled the fetch, or the store stops.
    Cancelled,
}

impl Short {
    /// The reason that is reported for the cache miss.
    pub fn miss(self) -> StoredMiss {
        match self {
            Self::Damaged => StoredMiss::Damaged,
            Self::Evicted => StoredMiss::Evicted,
            Self::Deadline | Self::Memory | Self::Cancelled => StoredMiss::Late,
        }
    }

    /// The metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Memory => "memory",
            Self::Damaged => "damaged",
            Self::Evicted => "evicted",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Written,
    /// The store already had the block.
    Known,
    /// The preceding block is not in the store (any more), so no lookup would find this one.
    Orphan,
    /// No space: the disk is full, or refuses writes for now.
    NoSpace,
    Failed,
    /// The store stopped before the write.
    Ended,
}

impl Outcome {
    /// True if the store has the block, so that its successors can be written.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Written | Self::Known)
    }

    /// The metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Known => "known",
            Self::Orphan => "orphan",
            Self::NoSpace => "no_space",
            Self::Failed => "failed",
            Self::Ended => "ended",
        }
    }
}

/// Receives answers on the I/O thread; must not block.
pub type Sink = Box<dyn Fn(Answer) + Send>;

impl fmt::Debug for Find {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Find({}, {} tokens)", self.seq, self.tokens.len())
    }
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fetch({}, {}, {:?})", self.seq, self.ticket, self.blocks)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(state) => write!(f, "State({state:?})"),
            Self::Found {
                seq, blocks, worth, ..
            } => write!(f, "Found({seq}, {blocks} blocks, worth {worth})"),
            Self::Fetched {
                ticket,
                loaded,
                short,
                ..
            } => write!(f, "Fetched({ticket}, {:?}, {short:?})", loaded.blocks),
            Self::Late { ticket, reason, .. } => write!(f, "Late({ticket}, {reason:?})"),
            Self::Committed { ticket, outcome } => write!(f, "Committed({ticket}, {outcome:?})"),
        }
    }
}
