//! The messages between actors, grouped by receiver in the order a request meets them. `HandOver` is with its `Estate`.
//!
//! Messages are plain data. Buffers, pages, rows and locks move inside them; `Debug` prints counts.

mod routing;
mod settings;
mod store;
mod view;
mod vision;

use std::sync::{Arc, Weak};
use std::time::Instant;

use actix::{Message, Recipient};
use serde::Serialize;

use crate::call::Prompts;
use crate::links::SchedulerLinks;
use crate::mailbox::{HandlerTimer, InFlight};
use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::{IntakeId, RequestId, SeqId, StepId, UnitId};
use souffleur_metrics::EngineLoad;
use souffleur_request::sink::EventSink;
use souffleur_request::{CancelFlag, GenerateRequest};
use souffleur_state::cache::changes::TreeNote;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::{PrefixEvent, PrefixReport};
use souffleur_state::scheduler::CacheFlushed;
use souffleur_state::scheduler::news::RequestTokens;
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::submission::{Resume, Submission};
use souffleur_state::step::{RowResult, StepOutput, StepPlan};
use souffleur_state::supervision::Incarnation;
use souffleur_state::supervision::blame::Suspicion;

pub use crate::call::Asked;
pub use souffleur_request::sink::TokenEvent;

// To the Tokenizer.

/// Host or server -> Tokenizer, once per call: one request, or several that belong together. Each ends with exactly one
/// terminal event in its sink, and they are submitted in their order. A prompt that several requests share is rendered
/// and encoded once. A request whose sink holds no admission permit takes one, or fails with the exhausted limit.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Generate {
    call: Option<NewCall>,
    /// Gets the call if it is dropped unread, with a dead Tokenizer's mailbox.
    heir: Option<Recipient<Unread>>,
}

#[derive(Debug)]
struct NewCall {
    asked: Vec<Asked>,
    prompts: Prompts,
    in_flight: InFlight,
}

impl Generate {
    /// A single request, which counts as queued in the Tokenizer's mailbox from now on.
    pub fn new(request: GenerateRequest, sink: EventSink, cancel: CancelFlag) -> Self {
        Self::call(vec![Asked {
            request,
            sink,
            cancel,
        }])
    }

    /// Requests that belong together, such as samples of one prompt.
    pub fn call(asked: Vec<Asked>) -> Self {
        let prompts = Prompts::of(asked.iter().map(|asked| &asked.request));
        Self::with_prompts(asked, prompts)
    }

    /// Like [`Generate::call`], with prompts that were already examined.
    pub fn with_prompts(asked: Vec<Asked>, prompts: Prompts) -> Self {
        Self {
            call: Some(NewCall {
                asked,
                prompts,
                in_flight: InFlight::enter("tokenizer", "Generate"),
            }),
            heir: None,
        }
    }

    /// The Watchdog gets the call if no Tokenizer reads it.
    pub fn returning_to(mut self, heir: Recipient<Unread>) -> Self {
        self.heir = Some(heir);
        self
    }

    /// Takes the call out of the mailbox: it no longer counts as queued, and the timer times its handler until dropped.
    pub(crate) fn open(mut self) -> (Vec<Asked>, Prompts, HandlerTimer) {
        let call = self.call.take().expect("a call must be opened once");
        (call.asked, call.prompts, call.in_flight.open())
    }
}

impl Drop for Generate {
    fn drop(&mut self) {
        if let Some(heir) = self.heir.take()
            && let Some(call) = self.call.take()
        {
            heir.do_send(Unread(Self {
                call: Some(call),
                heir: None,
            }));
        }
    }
}

/// Scheduler -> Tokenizer, once per step that produced tokens: the whole batch.
#[derive(Message)]
#[rtype(result = "()")]
pub struct TokensReady {
    /// The Scheduler's unit and generation. The Tokenizer drops results of older generations: they are computed again.
    pub from: Incarnation,
    /// One entry for each request that advanced, in batch order.
    pub batch: Vec<RequestTokens>,
    /// For cache-miss diagnostics: admissions and evictions since the last such message, in their order.
    pub prefixes: Vec<PrefixEvent>,
    /// First admissions since the last such message, with their times.
    pub admissions: Vec<(IntakeId, Instant)>,
}

/// Watchdog -> Tokenizer, after a unit was started: the Tokenizer sends its Scheduler all live requests of earlier
/// generations, then those that arrived meanwhile.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Relink {
    pub at: Incarnation,
    pub links: SchedulerLinks,
    /// The requests that may have caused the death of the generation before.
    pub suspicion: Suspicion,
    /// When the first actor died that was restarted now; `None` for the first start.
    pub down_since: Option<Instant>,
}

/// Host or server -> Tokenizer, rare: where a request's prompt diverged from the tree, and why. `None` for an id
/// that is unknown, not admitted yet or no longer recorded, and while diagnostics are off.
#[derive(Debug, Message)]
#[rtype(result = "Option<Box<PrefixReport>>")]
pub struct GetPrefixReport {
    pub rid: RequestId,
}

// To the Scheduler.

/// Tokenizer -> Scheduler, once per request. Answered by `TokensReady`, the last with an `end`.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Submit {
    pub request: Box<Submission>,
}

/// Tokenizer -> Scheduler, the first message of each generation: requests of earlier generations, which continue after
/// the tokens that their clients were told.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ResumeRequests {
    pub resume: Box<Resume>,
}

/// Host or server -> Tokenizer -> Scheduler, rare: cancels a request, whose flag the sender raises first. Unknown ids are
/// ignored and counted. No step planned afterwards contains the request.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CancelRequest {
    pub rid: RequestId,
    /// The flag of the request to cancel; `None` for any request with the id.
    pub flag: Option<CancelFlag>,
}

/// Host or server -> Tokenizer -> Scheduler, rare: cancels all requests that were sent before it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CancelAll;

/// Tokenizer -> Scheduler, when stop strings were completed: the batch of one `TokensReady`.
/// A request that was released already is ignored and counted.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopFound {
    /// Request, and how many of its output tokens are kept.
    pub stops: Vec<(RequestId, usize)>,
}

/// Allocator -> Scheduler, once per plan. Answers `PlanStep` or `ReservePages`.
pub use souffleur_state::plan::StepPlanned;

pub use store::{ServeUnit, StoreAnswered, StoreNews, StoreOrders, UseStore};

pub use vision::{ImageEncoded, VisionOrders, VisionTold};

/// Executor thread -> Scheduler, once per step, in step order.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StepDone {
    pub step: StepId,
    /// Tokens and log probabilities, or why there are none.
    pub result: Result<StepOutput, StepError>,
    /// When the executor began the step.
    pub began: Instant,
    /// Seconds that the executor worked on the step.
    pub run_seconds: f64,
    /// Seconds that the executor was idle between its previous step and this one.
    pub idle_seconds: f64,
}

/// Host -> Scheduler, rare: keeps a cached prefix in memory until it is unpinned or `ttl_s` has passed. After a rebuild
/// and a lost step the prefix is pinned again once it is cached.
/// Bounded in number; pins are revoked before an idle engine rejects a request for lack of memory.
#[derive(Debug, Message)]
#[rtype(result = "Result<PrefixPinned, RequestError>")]
pub struct PinPrefix {
    pub namespace: Namespace,
    pub tokens: Arc<[u32]>,
    pub ttl_s: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixPinned {
    /// Identifies the pin in `UnpinPrefix`. No number is assigned twice while the engine lives.
    pub pin: u64,
    /// Tokens of the prefix that are in the cache and stay there.
    pub tokens: usize,
}

/// Host -> Scheduler, rare: releases a pin. Answers whether it was still held.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct UnpinPrefix {
    pub pin: u64,
}

/// Host or server -> Scheduler, one per conversation that continues: keeps a cached prefix until it is unpinned,
/// `ttl_s` has passed, or its memory is needed. Bounded in number and by a share of the pool: the oldest are released
/// first, and all of them before a request waits, is retracted, preempted or rejected for lack of memory. They end with
/// the unit, and with a lost step.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PinSoftly {
    /// Identifies the pin; `EngineHandle::pin_softly` assigns unique names.
    pub name: u64,
    /// A pin that this one replaces, which is released.
    pub replaces: Option<u64>,
    pub namespace: Namespace,
    pub tokens: Arc<[u32]>,
    pub ttl_s: u32,
}

/// Host or server -> Scheduler, rare: releases a soft pin, if it is still held.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct UnpinSoftly {
    pub name: u64,
}

/// RadixCache -> Scheduler, answers `ProbePrefixes`. The plan continues with `PlanStep`.
pub use souffleur_state::plan::probe::PrefixesProbed;

/// Host or server -> Scheduler, rare: switches policies from the next plan on. Requests are not affected. Unknown
/// names change nothing. A rebuilt unit starts with the policies that were set last.
#[derive(Debug, Default, Message)]
#[rtype(result = "Result<PoliciesSet, RequestError>")]
pub struct SetPolicy {
    pub schedule_policy: Option<String>,
    pub radix_eviction_policy: Option<String>,
}

/// Answers `SetPolicy`: the policies from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoliciesSet {
    /// Order of the waiting queue; `fcfs` if the requested one needs a prefix cache and there is none.
    pub schedule_policy: &'static str,
    /// Which cached prefix is evicted first; `none` without a prefix cache.
    pub radix_eviction_policy: &'static str,
}

/// Host or server -> Scheduler, rare: flushes every unpinned cached prefix. Refused while a request runs or waits.
#[derive(Debug, Message)]
#[rtype(result = "Result<CacheFlushed, RequestError>")]
pub struct FlushCache;

/// Host or server -> Scheduler, rare: pauses or resumes the engine. Steps in flight finish; no other is planned until
/// it resumes. Requests that arrive meanwhile wait. A unit that is rebuilt during a pause starts paused.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SetPaused {
    pub paused: bool,
}

/// Host or server -> Scheduler, rare: a snapshot of queues, pools and counters, as of the last plan.
#[derive(Debug, Message)]
#[rtype(result = "EngineStats")]
pub struct GetStats;

/// Host or server -> Scheduler, rare: like [`GetStats`], with rates and waiting tokens. Walks the queue.
#[derive(Debug, Message)]
#[rtype(result = "EngineLoad")]
pub struct GetLoad;

/// Host or server -> Router, rare: the load of each replica, by their ids; `None` for one whose actors are replaced.
#[derive(Debug, Message)]
#[rtype(result = "Vec<Option<EngineLoad>>")]
pub struct GetLoads;

pub use view::{EncodingRequest, EngineView, GetRequests, GetView, KnownRequests, ViewedRequests};

/// Engine -> Tokenizer -> Scheduler, at shutdown: answers once all requests that were sent before it have ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

// To the RadixCache.

/// Scheduler -> RadixCache, once per plan of a policy that orders by the cache. Answered by `PrefixesProbed`.
/// Covers all waiting requests (at most 128 for lpm and hrrn), in queue order, and touches their prefixes.
pub use souffleur_state::plan::probe::ProbePrefixes;

/// Scheduler -> RadixCache, once per plan that settles or admits anything. Forwarded as `ReservePages`.
pub use souffleur_state::plan::PlanStep;

/// Server -> RadixCache, several times per second while a client watches the console: the changes of the tree since the
/// last such message of this reader. The first one of a reader starts the notes, which end when the reader is dropped.
#[derive(Debug, Message)]
#[rtype(result = "TreeNotes")]
pub struct TakeTreeNotes {
    pub reader: Weak<TreeReader>,
}

/// Names a reader of the tree's changes.
#[derive(Debug, Default)]
pub struct TreeReader;

/// Answers [`TakeTreeNotes`].
#[derive(Debug, Default)]
pub struct TreeNotes {
    pub notes: Vec<TreeNote>,
    /// The notes begin anew: their first is a `Cleared`, and all nodes follow, in this answer and the next ones.
    pub is_restart: bool,
    /// All nodes have been noted.
    pub is_whole: bool,
}

/// Server -> RadixCache, several times per second while a client watches the console: how many locks keep each node.
/// The answer has their order, and 0 for a node that does not exist.
#[derive(Debug, Message)]
#[rtype(result = "Vec<u32>")]
pub struct GetLocks {
    pub nodes: Vec<u32>,
}

/// Host -> RadixCache, rare: how much of a prompt is cached. Touches, splits and locks nothing.
#[derive(Debug, Message)]
#[rtype(result = "usize")]
pub struct PeekPrefix {
    pub namespace: Namespace,
    pub tokens: Arc<[u32]>,
}

// To the Allocator.

/// RadixCache (or the Scheduler, for a decode that only grows) -> Allocator, once per plan. All or nothing.
/// Answered by `StepPlanned` to the Scheduler.
pub use souffleur_state::plan::ReservePages;

// To the Executor.

/// Scheduler -> Executor, once per step, at most two in flight. Answered by `StepDone`.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RunStep {
    pub plan: Box<StepPlan>,
    /// The cleared rows of an earlier step's result, for reuse; the executor allocates new ones if there are none.
    pub spent: Option<Vec<RowResult>>,
}

/// Scheduler -> Executor: sequences that ended while decodes of them were in flight. Steps not yet begun skip them.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SequencesEnded {
    pub seqs: Vec<SeqId>,
}

// To the Watchdog.

/// A dying actor or thread -> Watchdog, which starts the dead actors again. (While the KV store is started again, the
/// unit runs without it.)
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct ActorDied {
    pub actor: &'static str,
    /// The actor's unit; `None` for an actor or thread that serves all units.
    pub unit: Option<UnitId>,
    /// The generation of the actor's unit, or the number of the Tokenizer or the KvStore: the Watchdog ignores late
    /// reports.
    pub generation: u64,
    pub panicked: bool,
    /// The message and the place of the panic, the injected fault, or the error of the device; empty if nothing is
    /// known.
    pub cause: Arc<str>,
    /// The part of `cause` that is equal for deaths by one cause: without the message, unless only that is known.
    pub place: Arc<str>,
    /// The request that the actor worked on when it panicked, if it worked on only one.
    pub in_hand: Option<IntakeId>,
}

pub use settings::{HostPins, HostSettings};

pub use routing::{
    AdoptRequests, Adopted, GeneratedTokens, ReplicaDied, ReplicaStarted, RouteNews, RouteRequest,
    Routed, RouterLinks, RouterStarted, TokenizerStarted, UnitDied,
};

/// The mailbox of a dead Tokenizer -> Watchdog, which sends it to the next one: a call that no Tokenizer has read.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Unread(pub Generate);

impl std::fmt::Debug for TokensReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokensReady({} requests)", self.batch.len())
    }
}

impl std::fmt::Debug for StepDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.result {
            Ok(output) => write!(f, "StepDone({}, {} rows)", self.step, output.rows.len()),
            Err(error) => write!(f, "StepDone({}, {error})", self.step),
        }
    }
}

// To hosts.

pub use crate::doors::Doors;
