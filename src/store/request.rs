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
    /// Blocks that the tree has, so that the store's are not needed.
    pub from: usize,
    /// The executor's rate of prefills at that depth, in tokens a second; `None` before it has one.
    pub prefill_tokens_per_s: Option<f64>,
}

/// Requests blocks in memory. Answered by [`Answer::Fetched`] or [`Answer::Late`], once, by the deadline.
#[derive(Clone)]
pub struct Fetch {
    pub seq: SeqId,
    pub ticket: Ticket,
    /// The blocks of the prompt, as [`Answer::Found`] gave them.
    pub path: Arc<[BlockPlace]>,
    /// The requested blocks. Fewer may come: memory is short, or they were evicted. Then request the rest.
    pub blocks: Range<usize>,
    pub timeout: Duration,
}

/// Hands over a filled block to be written. Answered by [`Answer::Committed`].
#[derive(Debug)]
pub struct Commit {
    pub ticket: Ticket,
    /// Its name, and the block that it follows.
    pub place: BlockPlace,
    pub block: HostBlock,
}

/// Why a request was refused. It gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store does not serve: it is starting, or off.
    #[error("the KV store is not ready, or has stopped")]
    NotServing,
    #[error("the KV store request queue is full")]
    Full,
}

#[derive(Clone, Debug)]
pub enum TierState {
    /// The fingerprint is not known yet: weights are being read.
    Identifying,
    /// The records on the disk are being found.
    Recovering,
    /// It finds, fetches and saves.
    Serving {
        keys: Keys,
        /// Records on the disk now.
        records: usize,
    },
    /// It does nothing until the engine restarts, for a reason that a person can act on.
    Off { reason: String, panicked: bool },
}

/// Answers and changes of state of the I/O thread. Answers to requests come once each, in any order.
pub enum Answer {
    /// The store has entered another state; the first is [`TierState::Identifying`].
    State(TierState),
    Found {
        seq: SeqId,
        /// The whole blocks of the prompt, for [`Fetch`]: only as many as are in the store.
        path: Arc<[BlockPlace]>,
        /// Leading blocks after which the sequence can resume: fewer than `path` where states or windows are missing.
        blocks: usize,
        /// As many of them as pay to be loaded after `from`: `blocks`, or 0 where computing is faster.
        worth: usize,
        /// Why the next block is missing, if it was there recently.
        miss: Option<StoredMiss>,
    },
    Fetched {
        seq: SeqId,
        ticket: Ticket,
        loaded: Loaded,
        /// Why it is less than requested.
        short: Option<Short>,
    },
    /// No answer came.
    Late {
        seq: SeqId,
        ticket: Ticket,
        reason: Short,
    },
    /// The outcome of a commit, by its save.
    Committed { ticket: Ticket, outcome: Outcome },
}

/// Blocks whose bytes are checked. Dropping it returns the buffers.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Which blocks of the path: from the first requested one on, at least one.
    pub blocks: Range<usize>,
    /// Their keys and values, in order.
    pub kv: Vec<HostBlock>,
    /// Window records of the last of them, in order: those of [`Needs::window_blocks`] at `blocks.end`, as far as they
    /// are among `blocks`.
    ///
    /// [`Needs::window_blocks`]: souffleur_state::tiers::Needs::window_blocks
    pub window: Vec<HostBlock>,
    /// The state after the last of them, where layers keep one.
    pub state: Option<HostBlock>,
}

/// Why a fetch brought less than requested, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    Deadline,
    /// No buffer is free for more.
    Memory,
    /// A record was damaged or could not be read.
    Damaged,
    /// A record was evicted since it was found.
    Evicted,
    /// The caller has cancelled it, or the store ends.
    Cancelled,
}

impl Short {
    /// The reason of the miss, for the request whose blocks are missing.
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
    /// The store had it.
    Known,
    /// The block that it follows is not in the store (any more), so nothing would ever find it.
    Orphan,
    /// No space: the disk is full, or refuses writes for now.
    NoSpace,
    Failed,
    /// The store ended first.
    Ended,
}

impl Outcome {
    /// The store has the block: its successors can be written.
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

/// The receiver of answers: called on the I/O thread, it must not wait.
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
