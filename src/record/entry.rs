//! The records of a message log: calls to the scheduler's state, and their outcomes.

mod images;
mod resume;
mod step;
mod submit;
mod submitted;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use self::images::with_images;
pub use self::images::{ImageEntry, ImagesEntry};
pub use self::resume::ResumeEntry;
pub use self::step::StepRows;
pub use self::submit::{NamespaceEntry, SubmitEntry};
pub use self::submitted::Submitted;
use crate::digest::{NewsDigest, NextDigest, PlannedDigest, ProbedDigest, Seq};
use souffleur_base::error::StepError;
use souffleur_base::ids::{IntakeId, RequestId, StepId, Ticket};
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::pooling::Pooling;
use souffleur_state::scheduler::submission::{Resumption, Submission};
use souffleur_state::vision::{Encoding, VisionNews};

/// One record. A call is written before it is made, so that the log contains calls that panic; its outcome follows.
///
/// New variants are added at the end: the index of a variant is its encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// An engine unit (a scheduler, its prefix cache and its pools) starts with new states.
    Start {
        generation: u64,
    },
    Submit(Box<SubmitEntry>),
    Cancel {
        rid: RequestId,
        flag: FlagOf,
    },
    CancelAll,
    StopFound {
        rid: RequestId,
        /// Number of output tokens before the stop.
        kept: u64,
    },
    StepDone {
        step: StepId,
        result: Result<StepRows, StepError>,
    },
    Pin {
        namespace: NamespaceEntry,
        tokens: Arc<[u32]>,
        expires_s: u64,
    },
    Unpin {
        pin: u64,
    },
    /// Pins expired. A check that expires no pin is not written.
    ExpirePins {
        now_s: u64,
    },
    /// The tree and the pools answered the pending plan.
    Planned(Box<PlannedDigest>),
    /// The actor called for the state's next message.
    Next,
    /// The requests whose cancel flag the previous call saw raised.
    CancelsSeen(Vec<IntakeId>),
    /// The message that the previous call returned.
    Outcome(Box<NextDigest>),
    /// Tokens and ends of requests were taken, to be sent to the Tokenizer.
    News(NewsDigest),
    /// The tree answered the scheduling policy's probe.
    Probed(Box<ProbedDigest>),
    SetPolicy {
        name: String,
    },
    SetEvictionPolicy {
        name: String,
    },
    /// Requests were checked for expired timeouts.
    ExpireRequests {
        now_s: f64,
    },
    FlushCache,
    /// As `Submit`, for a request whose output must start with the given tokens.
    SubmitOpened(Box<SubmitEntry>, Arc<[u32]>),
    /// As `Submit`, for a chat with a model that has recurrent or window layers.
    SubmitAnchored {
        request: Box<SubmitEntry>,
        opening: Arc<[u32]>,
        /// Positions at which other prompts are likely to diverge.
        anchors: Arc<[u32]>,
    },
    SetPaused {
        paused: bool,
    },
    /// As `Submit`, for a request that bypasses the cache: the log omits its prompt embeddings.
    SubmitBypassing {
        request: Box<SubmitEntry>,
        opening: Arc<[u32]>,
        anchors: Arc<[u32]>,
    },
    SubmitPooling {
        request: Box<SubmitEntry>,
        pooling: Pooling,
        bypasses_cache: bool,
        anchors: Arc<[u32]>,
    },
    /// A request to pin a prefix until its memory is needed.
    PinSoftly {
        /// The pin's name.
        name: u64,
        replaces: Option<u64>,
        namespace: NamespaceEntry,
        tokens: Arc<[u32]>,
        expires_s: u64,
    },
    UnpinSoftly {
        name: u64,
    },
    /// As `Submit`, for a sequence with long-context RoPE factors.
    SubmitLong {
        request: Box<SubmitEntry>,
        opening: Arc<[u32]>,
        anchors: Arc<[u32]>,
        pooling: Option<Pooling>,
        bypasses_cache: bool,
    },
    /// The KV store became available, or stopped.
    StoreServes {
        serves: bool,
    },
    /// The KV store answered a lookup of a prompt. `worth`: number of blocks that are faster to fetch than to compute.
    Found {
        seq: Seq,
        blocks: u64,
        worth: u64,
    },
    Fetched {
        ticket: Ticket,
        blocks: u64,
    },
    Written {
        tickets: Vec<Ticket>,
        /// False if the store did not keep the blocks.
        kept: bool,
    },
    /// As `Found`, with the reason why the store lacks the next block.
    FoundShort {
        seq: Seq,
        blocks: u64,
        worth: u64,
        miss: StoredMiss,
    },
    /// A fetch from the KV store ended before its last block.
    FetchedShort {
        ticket: Ticket,
        blocks: u64,
        miss: StoredMiss,
    },
    /// The duration of a step with prefill, which limits the prefill of later steps.
    StepTook {
        step: StepId,
        /// Microseconds.
        micros: u64,
    },
    /// The unit assigns no smaller ids, see `IdFloor` of the scheduler. Not written for the first generation.
    IdFloor {
        step: u64,
        sequences: u64,
    },
    /// A request of an earlier generation continues. A message has one record for each of its requests.
    Resume(Box<ResumeEntry>),
    /// A pin of an earlier generation continues.
    RestorePin {
        pin: u64,
        namespace: NamespaceEntry,
        tokens: Arc<[u32]>,
        expires_s: u64,
    },
    /// As `Submit`, for a request with images that must be encoded: the log omits their pixels.
    SubmitImages {
        submitted: Box<Submitted>,
        images: Vec<ImageEntry>,
    },
    /// As `Resume`, for a request with images that must be encoded.
    ResumeImages {
        resumed: Box<ResumeEntry>,
        images: Vec<ImageEntry>,
    },
    /// The Vision actor told the Scheduler which image steps encode from now on, or that there is none.
    VisionRun(Option<EncodingEntry>),
    /// The vectors of these tickets' images are in memory.
    Encoded {
        tickets: Vec<Ticket>,
    },
    NotEncoded {
        tickets: Vec<Ticket>,
        reason: String,
    },
    /// As `Submit`, for a request whose images attend to themselves in both directions.
    SubmitBidirectional {
        submitted: Box<Submitted>,
        images: ImagesEntry,
    },
    /// As `Resume`, for such a request.
    ResumeBidirectional {
        resumed: Box<ResumeEntry>,
        images: ImagesEntry,
    },
}

impl Entry {
    /// Converts `SubmitImages` to `SubmitBidirectional`, and `Resume` and `ResumeImages` to `ResumeBidirectional`,
    /// which can express them too, so that a replay handles one form.
    pub(crate) fn widened(self) -> Self {
        match self {
            Self::SubmitImages { submitted, images } => Self::SubmitBidirectional {
                submitted,
                images: images.into(),
            },
            Self::ResumeImages { resumed, images } => Self::ResumeBidirectional {
                resumed,
                images: images.into(),
            },
            Self::Resume(resumed) => Self::ResumeBidirectional {
                resumed,
                images: ImagesEntry::default(),
            },
            other => other,
        }
    }

    pub(super) fn resume(resumption: &Resumption, now_s: f64) -> Self {
        let resumed = Box::new(ResumeEntry::new(resumption, now_s));
        let images = ImagesEntry::of(&resumption.submission);
        if images.has_whole() {
            return Self::ResumeBidirectional { resumed, images };
        }
        let images = images::of_request(&resumption.submission);
        if images.is_empty() {
            Self::Resume(resumed)
        } else {
            Self::ResumeImages { resumed, images }
        }
    }

    pub(super) fn news_of_vision(news: &VisionNews) -> Self {
        match news {
            VisionNews::Run(encoding) => {
                Self::VisionRun(encoding.as_ref().map(EncodingEntry::from))
            }
            VisionNews::Encoded { tickets, .. } => Self::Encoded {
                tickets: tickets.to_vec(),
            },
            VisionNews::Failed { tickets, reason } => Self::NotEncoded {
                tickets: tickets.to_vec(),
                reason: reason.clone(),
            },
        }
    }

    pub(super) fn submit(request: &Submission) -> Self {
        let images = ImagesEntry::of(request);
        if images.has_whole() {
            return Self::SubmitBidirectional {
                submitted: Box::new(request.into()),
                images,
            };
        }
        let images = images::of_request(request);
        if !images.is_empty() {
            return Self::SubmitImages {
                submitted: Box::new(request.into()),
                images,
            };
        }
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
        if request.opening.is_empty() {
            Self::Submit(entry)
        } else {
            Self::SubmitOpened(entry, request.opening.clone())
        }
    }

    /// The name of the message that caused the call, as in `actors::messages`.
    pub fn message(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start of the engine",
            Self::Submit(_)
            | Self::SubmitOpened(..)
            | Self::SubmitAnchored { .. }
            | Self::SubmitBypassing { .. }
            | Self::SubmitPooling { .. }
            | Self::SubmitLong { .. }
            | Self::SubmitImages { .. }
            | Self::SubmitBidirectional { .. } => "Submit",
            Self::IdFloor { .. }
            | Self::Resume(_)
            | Self::ResumeImages { .. }
            | Self::ResumeBidirectional { .. } => "Resume",
            Self::Cancel { .. } => "CancelRequest",
            Self::CancelAll => "CancelAll",
            Self::StopFound { .. } => "StopFound",
            Self::StepDone { .. } | Self::StepTook { .. } => "StepDone",
            Self::Pin { .. } => "PinPrefix",
            Self::Unpin { .. } => "UnpinPrefix",
            Self::RestorePin { .. } => "restored pin",
            Self::PinSoftly { .. } => "PinSoftly",
            Self::UnpinSoftly { .. } => "UnpinSoftly",
            Self::ExpirePins { .. } => "expiry of pins",
            Self::Planned(_) => "StepPlanned",
            Self::Next => "request for the next message",
            Self::CancelsSeen(_) => "raised cancel flags",
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
            Self::VisionRun(_) | Self::Encoded { .. } | Self::NotEncoded { .. } => "VisionTold",
            Self::FlushCache => "FlushCache",
            Self::SetPaused { .. } => "SetPaused",
            Self::ExpireRequests { .. } => "expiry of requests",
        }
    }

    /// True for inputs from outside; false for messages between the states, and for outcomes.
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

/// The log's form of an [`Encoding`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodingEntry {
    job: Ticket,
    tickets: Vec<Ticket>,
    /// Floating-point operations of each part of the tower's work, in order.
    work: Vec<u64>,
}

impl From<&Encoding> for EncodingEntry {
    fn from(encoding: &Encoding) -> Self {
        Self {
            job: encoding.job,
            tickets: encoding.tickets.to_vec(),
            work: encoding.work.to_vec(),
        }
    }
}

impl From<EncodingEntry> for Encoding {
    fn from(entry: EncodingEntry) -> Self {
        Self {
            job: entry.job,
            work: entry.work.into(),
            tickets: entry.tickets.into(),
            input: None,
        }
    }
}

/// The request that a cancel flag belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlagOf {
    /// The call has no flag, and applies to any request with the id.
    Nobody,
    /// The request in flight with the id.
    Holder,
    /// An earlier request with the same id.
    Another,
}
