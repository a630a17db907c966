//! The records of a log: calls into the scheduler's state, and the outcome of each.

mod step;
mod submit;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::step::StepRows;
pub use self::submit::{NamespaceEntry, SubmitEntry};
use crate::error::StepError;
use crate::ids::{IntakeId, RequestId, StepId, Ticket};
use crate::record::digest::{NewsDigest, NextDigest, PlannedDigest, ProbedDigest, Seq};
use crate::state::cache::prefix_history::StoredMiss;
use crate::state::pooling::Pooling;
use crate::state::scheduler::submission::Submission;

/// One record. A call is written before it is made, so that one that panics is in the log; its outcome follows.
///
/// New variants go to the end: the place is the encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// A unit begins: its states are new.
    Start {
        /// Which unit of the engine.
        generation: u64,
    },
    /// A request came in.
    Submit(Box<SubmitEntry>),
    /// A request was cancelled.
    Cancel {
        /// The id.
        rid: RequestId,
        /// Whose flag came with it.
        flag: FlagOf,
    },
    /// Everything was cancelled.
    CancelAll,
    /// A stop string was found.
    StopFound {
        /// The request.
        rid: RequestId,
        /// Output tokens that count.
        kept: u64,
    },
    /// A step ended.
    StepDone {
        /// The step.
        step: StepId,
        /// The output that it brought.
        result: Result<StepRows, StepError>,
    },
    /// A prefix was to be kept.
    Pin {
        /// Where it is shared.
        namespace: NamespaceEntry,
        /// The prefix.
        tokens: Arc<[u32]>,
        /// Until when.
        expires_s: u64,
    },
    /// A pin was given back.
    Unpin {
        /// The pin.
        pin: u64,
    },
    /// Pins expired: looking for them changes nothing otherwise, and is not written.
    ExpirePins {
        /// The scheduler's clock.
        now_s: u64,
    },
    /// Tree and pools answered the open plan.
    Planned(Box<PlannedDigest>),
    /// The state was asked what to send.
    Next,
    /// Requests whose raised flag the call before saw.
    CancelsSeen(Vec<IntakeId>),
    /// The message that the call before said to send.
    Outcome(Box<NextDigest>),
    /// News were taken, to be sent to the Tokenizer.
    News(NewsDigest),
    /// The tree answered what the policy asked.
    Probed(Box<ProbedDigest>),
    /// Another order of the queue was asked for.
    SetPolicy {
        /// The policy.
        name: String,
    },
    /// Another order of eviction was asked for.
    SetEvictionPolicy {
        /// The policy.
        name: String,
    },
    /// Requests with time limits were looked through.
    ExpireRequests {
        /// The scheduler's clock.
        now_s: f64,
    },
    /// The cache was to be emptied.
    FlushCache,
    /// A request came in whose output begins with these tokens.
    SubmitOpened(Box<SubmitEntry>, Arc<[u32]>),
    /// A request came in to a model whose layers keep states.
    SubmitAnchored {
        /// The request.
        request: Box<SubmitEntry>,
        /// Its output begins with these tokens.
        opening: Arc<[u32]>,
        /// Other prompts are likely to leave its own at these positions.
        anchors: Arc<[u32]>,
    },
    /// A pause began or ended.
    SetPaused {
        /// It began.
        paused: bool,
    },
    /// A request came in that bypasses the cache: its prompt is vectors, of which only the number matters to the states.
    SubmitBypassing {
        /// The request.
        request: Box<SubmitEntry>,
        /// Its output begins with these tokens.
        opening: Arc<[u32]>,
        /// Other prompts are likely to leave its own at these positions.
        anchors: Arc<[u32]>,
    },
    /// A request came in for the embedding of its prompt.
    SubmitPooling {
        /// The request.
        request: Box<SubmitEntry>,
        /// Which states the embedding is made of.
        pooling: Pooling,
        /// Its prompt is vectors.
        bypasses_cache: bool,
        /// Other prompts are likely to leave its own at these positions.
        anchors: Arc<[u32]>,
    },
    /// A prefix was to be kept until its memory is needed.
    PinSoftly {
        /// Names the pin.
        name: u64,
        /// A pin that was given back for it.
        replaces: Option<u64>,
        /// Where it is shared.
        namespace: NamespaceEntry,
        /// The prefix.
        tokens: Arc<[u32]>,
        /// Until when.
        expires_s: u64,
    },
    /// A soft pin was given back.
    UnpinSoftly {
        /// The pin.
        name: u64,
    },
    /// A request came in whose sequence rotates as long ones do.
    SubmitLong {
        /// The request.
        request: Box<SubmitEntry>,
        /// Its output begins with these tokens.
        opening: Arc<[u32]>,
        /// Other prompts are likely to leave its own at these positions.
        anchors: Arc<[u32]>,
        /// Which states the embedding that it wants is made of.
        pooling: Option<Pooling>,
        /// Its prompt is vectors.
        bypasses_cache: bool,
    },
    /// The KV store began to serve, or ended.
    StoreServes {
        /// It began.
        serves: bool,
    },
    /// The KV store told how much it has of a prompt.
    Found {
        /// Whose prompt.
        seq: Seq,
        /// Blocks that it has.
        blocks: u64,
        /// Of these, blocks that pay to be fetched.
        worth: u64,
    },
    /// A fetch from the KV store ended.
    Fetched {
        /// The fetch.
        ticket: Ticket,
        /// Blocks that it brought.
        blocks: u64,
    },
    /// The KV store was done with blocks that were saved.
    Written {
        /// The saves.
        tickets: Vec<Ticket>,
        /// It has them now.
        kept: bool,
    },
    /// The KV store told how much it has of a prompt, and why it has no more.
    FoundShort {
        /// Whose prompt.
        seq: Seq,
        /// Blocks that it has.
        blocks: u64,
        /// Of these, blocks that pay to be fetched.
        worth: u64,
        /// Why there are no more.
        miss: StoredMiss,
    },
    /// A fetch from the KV store ended before its last block.
    FetchedShort {
        /// The fetch.
        ticket: Ticket,
        /// Blocks that it brought.
        blocks: u64,
        /// Why there are no more.
        miss: StoredMiss,
    },
    /// A step that prefilled took so long, which bounds the next ones.
    StepTook {
        /// The step.
        step: StepId,
        /// Microseconds.
        micros: u64,
    },
}

impl Entry {
    /// A request that comes in.
    pub(super) fn submit(request: &Submission) -> Self {
        let entry = Box::new(SubmitEntry::from(request));
        if request.namespace.has_long_rotation() {
            return Self::SubmitLong {
                request: entry,
                opening: request.opening.clone(),
                anchors: request.anchors.clone(),
                pooling: request.pooling,
                bypasses_cache: request.bypasses_cache,
            };
        }
        if let Some(pooling) = request.pooling {
            return Self::SubmitPooling {
                request: entry,
                pooling,
                bypasses_cache: request.bypasses_cache,
                anchors: request.anchors.clone(),
            };
        }
        if request.bypasses_cache {
            return Self::SubmitBypassing {
                request: entry,
                opening: request.opening.clone(),
                anchors: request.anchors.clone(),
            };
        }
        if !request.anchors.is_empty() {
            return Self::SubmitAnchored {
                request: entry,
                opening: request.opening.clone(),
                anchors: request.anchors.clone(),
            };
        }
        match request.opening.is_empty() {
            true => Self::Submit(entry),
            false => Self::SubmitOpened(entry, request.opening.clone()),
        }
    }

    /// The message that brought it, as `actors::messages` calls it.
    pub fn message(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start of a unit",
            Self::Submit(_)
            | Self::SubmitOpened(..)
            | Self::SubmitAnchored { .. }
            | Self::SubmitBypassing { .. }
            | Self::SubmitPooling { .. }
            | Self::SubmitLong { .. } => "Submit",
            Self::Cancel { .. } => "CancelRequest",
            Self::CancelAll => "CancelAll",
            Self::StopFound { .. } => "StopFound",
            Self::StepDone { .. } | Self::StepTook { .. } => "StepDone",
            Self::Pin { .. } => "PinPrefix",
            Self::Unpin { .. } => "UnpinPrefix",
            Self::PinSoftly { .. } => "PinSoftly",
            Self::UnpinSoftly { .. } => "UnpinSoftly",
            Self::ExpirePins { .. } => "expiry of pins",
            Self::Planned(_) => "StepPlanned",
            Self::Next => "the question what to send",
            Self::CancelsSeen(_) => "raised flags",
            Self::Outcome(next) => next.message(),
            Self::News(_) => "TokensReady",
            Self::Probed(_) => "PrefixesProbed",
            Self::SetPolicy { .. } | Self::SetEvictionPolicy { .. } => "SetPolicy",
            Self::StoreServes { .. }
            | Self::Found { .. }
            | Self::Fetched { .. }
            | Self::FoundShort { .. }
            | Self::FetchedShort { .. }
            | Self::Written { .. } => "StoreNews",
            Self::FlushCache => "FlushCache",
            Self::SetPaused { .. } => "SetPaused",
            Self::ExpireRequests { .. } => "look for requests whose time is over",
        }
    }

    /// True for what came from outside; the rest was asked or answered inside.
    pub fn is_input(&self) -> bool {
        !matches!(
            self,
            Self::Start { .. }
                | Self::Planned(_)
                | Self::Probed(_)
                | Self::Next
                | Self::Outcome(_)
                | Self::News(_)
        )
    }
}

/// Which request a flag belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlagOf {
    /// No flag came: whichever request has the id is meant.
    Nobody,
    /// The request that has the id.
    Holder,
    /// Another one, which had the id before.
    Another,
}
