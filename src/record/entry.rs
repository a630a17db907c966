//! The records of a log: calls into the scheduler's state, and what came of each.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::StepError;
use crate::ids::{IntakeId, RequestId, SeqId, StepId, Ticket};
use crate::record::digest::{NewsDigest, NextDigest, PlannedDigest, ProbedDigest, Seq};
use crate::request::{CancelFlag, RequestTimeouts};
use crate::state::cache::namespace::Namespace;
use crate::state::cache::prefix_history::StoredMiss;
use crate::state::grammar::GrammarFailure;
use crate::state::pooling::Pooling;
use crate::state::sampling::SamplingParams;
use crate::state::sampling::{LogprobWish, RowLogprobs, TokenLogprobs};
use crate::state::scheduler::submission::Submission;
use crate::state::step::{RowResult, RowVerdict, StepOutput};

/// Most prompt log probabilities that one row of a step is believed to have brought.
const MAX_INPUT_LOGPROBS: u32 = 1 << 20;

/// One record. A call is written before it is made, so that one that panics is in the log; what came of it follows.
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
        /// What it brought.
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
    /// Of the call before: requests whose raised flag it saw.
    CancelsSeen(Vec<IntakeId>),
    /// Of the call before: what it said to send.
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
            Self::StepDone { .. } => "StepDone",
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

/// A [`Namespace`] as it is written; the entry of a request tells how its sequence rotates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamespaceEntry {
    extra_key: Option<String>,
    cache_salt: Option<String>,
}

impl From<&Namespace> for NamespaceEntry {
    fn from(namespace: &Namespace) -> Self {
        Self {
            extra_key: namespace.extra_key().map(str::to_owned),
            cache_salt: namespace.cache_salt().map(str::to_owned),
        }
    }
}

impl From<&NamespaceEntry> for Namespace {
    fn from(entry: &NamespaceEntry) -> Self {
        Self::new(entry.extra_key.as_deref(), entry.cache_salt.as_deref())
    }
}

/// A [`Submission`] as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubmitEntry {
    /// The client's name for it.
    pub rid: RequestId,
    /// The Tokenizer's number for it.
    pub intake: IntakeId,
    /// The prompt.
    pub prompt: Arc<[u32]>,
    /// Where its prefix may be shared.
    pub namespace: NamespaceEntry,
    /// The sampling parameters as JSON: what has no place in the states may grow without a new format.
    pub sampling_json: String,
    /// Log probabilities wished for.
    pub logprobs: Option<LogprobWish>,
    /// Priority of the request. With `enable_priority_scheduling` larger values are served first (smaller ones with
    /// `schedule_low_priority_values_first`); without it only the eviction policy `priority` looks at it.
    pub priority: Option<i64>,
    /// When it came in, by the scheduler's clock.
    pub submitted_s: f64,
    /// How long it may wait and run.
    pub timeouts: RequestTimeouts,
}

impl From<&Submission> for SubmitEntry {
    fn from(request: &Submission) -> Self {
        let Submission {
            rid,
            intake,
            prompt,
            namespace,
            sampling,
            logprobs,
            // Replayed as an entry of its own.
            opening: _,
            anchors: _,
            // Its effect shows in the tokens and verdicts of the steps.
            grammar: _,
            // Read by the executor alone.
            vectors: _,
            // Written as an entry of its own.
            bypasses_cache: _,
            pooling: _,
            priority,
            // Seen or not is written when the state looks.
            cancel: _,
            submitted_s,
            timeouts,
        } = request;
        Self {
            rid: rid.clone(),
            intake: *intake,
            prompt: prompt.clone(),
            namespace: namespace.into(),
            sampling_json: serde_json::to_string(sampling.as_ref()).unwrap_or_default(),
            logprobs: logprobs.as_deref().cloned(),
            priority: *priority,
            submitted_s: *submitted_s,
            timeouts: *timeouts,
        }
    }
}

impl SubmitEntry {
    /// The request again, with a flag that nobody has raised.
    ///
    /// # Errors
    /// Says what cannot be in a log.
    pub fn submission(
        self,
        opening: Arc<[u32]>,
        anchors: Arc<[u32]>,
        cancel: CancelFlag,
    ) -> Result<Submission, String> {
        if self.prompt.is_empty() {
            return Err(format!("request {} has an empty prompt", self.rid));
        }
        let sampling: SamplingParams = serde_json::from_str(&self.sampling_json)
            .map_err(|error| format!("sampling parameters of request {}: {error}", self.rid))?;
        Ok(Submission {
            rid: self.rid,
            intake: self.intake,
            prompt: self.prompt,
            namespace: (&self.namespace).into(),
            sampling: Arc::new(sampling),
            logprobs: self.logprobs.map(Arc::new),
            opening,
            anchors,
            grammar: None,
            vectors: None,
            bypasses_cache: false,
            pooling: None,
            priority: self.priority,
            cancel,
            submitted_s: self.submitted_s,
            timeouts: self.timeouts,
        })
    }
}

/// A [`StepOutput`] as it is written: of log probabilities only how many there are, since nothing is decided by them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRows {
    step: StepId,
    rows: Vec<RowEntry>,
    /// The rows' tokens, one behind the other.
    tokens: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct RowEntry {
    seq: Seq,
    n_tokens: u32,
    accepted: u32,
    /// Prompt tokens whose log probabilities came, if any were wished for.
    input_logprobs: Option<u32>,
    verdict: VerdictEntry,
}

/// A [`RowVerdict`] as it is written. The first two are encoded as the boolean that stood here before there were grammars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum VerdictEntry {
    Open,
    NanLogits,
    GrammarDone,
    GrammarNoToken,
    GrammarTooComplex,
}

impl From<RowVerdict> for VerdictEntry {
    fn from(verdict: RowVerdict) -> Self {
        match verdict {
            RowVerdict::Open => Self::Open,
            RowVerdict::NanLogits => Self::NanLogits,
            RowVerdict::GrammarDone => Self::GrammarDone,
            RowVerdict::GrammarFailed(GrammarFailure::NoToken) => Self::GrammarNoToken,
            RowVerdict::GrammarFailed(GrammarFailure::TooComplex) => Self::GrammarTooComplex,
        }
    }
}

impl From<VerdictEntry> for RowVerdict {
    fn from(verdict: VerdictEntry) -> Self {
        match verdict {
            VerdictEntry::Open => Self::Open,
            VerdictEntry::NanLogits => Self::NanLogits,
            VerdictEntry::GrammarDone => Self::GrammarDone,
            VerdictEntry::GrammarNoToken => Self::GrammarFailed(GrammarFailure::NoToken),
            VerdictEntry::GrammarTooComplex => Self::GrammarFailed(GrammarFailure::TooComplex),
        }
    }
}

impl From<&StepOutput> for StepRows {
    fn from(output: &StepOutput) -> Self {
        let mut tokens = Vec::with_capacity(output.rows.len());
        let rows = output.rows.iter().map(|row| {
            let RowResult {
                seq,
                tokens: sampled,
                accepted,
                logprobs,
                verdict,
            } = row;
            tokens.extend_from_slice(sampled);
            RowEntry {
                seq: (*seq).into(),
                n_tokens: sampled.len() as u32,
                accepted: *accepted,
                input_logprobs: logprobs
                    .as_ref()
                    .map(|logprobs| logprobs.input.len() as u32),
                verdict: (*verdict).into(),
            }
        });
        Self {
            step: output.step,
            rows: rows.collect(),
            tokens,
        }
    }
}

impl StepRows {
    /// Tokens that the step brought.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The output again, with empty log probabilities.
    ///
    /// # Errors
    /// Says what cannot be in a log.
    pub fn output(&self) -> Result<StepOutput, String> {
        let mut tokens = self.tokens.as_slice();
        let mut rows = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let n_tokens = row.n_tokens as usize;
            let (sampled, rest) = tokens
                .split_at_checked(n_tokens)
                .ok_or_else(|| format!("step {} has fewer tokens than its rows say", self.step))?;
            tokens = rest;
            let n_input = row.input_logprobs.unwrap_or(0);
            if n_input > MAX_INPUT_LOGPROBS {
                return Err(format!(
                    "{n_input} prompt log probabilities, limit is {MAX_INPUT_LOGPROBS}"
                ));
            }
            let logprobs = |n: u32| {
                Box::new(RowLogprobs {
                    input: vec![TokenLogprobs::default(); n as usize],
                    output: Vec::new(),
                    embedding: None,
                })
            };
            rows.push(RowResult {
                seq: SeqId::from(row.seq),
                tokens: sampled.into(),
                accepted: row.accepted,
                logprobs: row.input_logprobs.map(logprobs),
                verdict: row.verdict.into(),
            });
        }
        Ok(StepOutput {
            step: self.step,
            rows,
        })
    }
}
