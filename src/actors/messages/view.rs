//! The questions of the server's console and of its `/debug` routes.

use std::time::Duration;

use actix::Message;

use crate::scheduler::steps::PastStep;
use souffleur_base::ids::RequestId;
use souffleur_state::scheduler::live::{LivePin, LivePool, LiveRequest};
use souffleur_state::scheduler::stats::EngineStats;

/// Server -> Scheduler, several times per second while a client watches the console, and for `/debug/requests`: the
/// requests, steps and pools.
#[derive(Debug, Message)]
#[rtype(result = "Box<EngineView>")]
pub struct GetView {
    /// The answer has the newest steps after this one.
    pub steps_after: u64,
    pub requests: ViewedRequests,
}

/// The requests of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewedRequests {
    /// At most this many, running ones first.
    First(usize),
    One(RequestId),
}

impl ViewedRequests {
    /// The requests that the console shows.
    pub const CONSOLE: Self = Self::First(64);
}

/// Answers [`GetView`].
#[derive(Clone, Debug, Default)]
pub struct EngineView {
    pub stats: EngineStats,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Ended steps, oldest first: at most 128.
    pub steps: Vec<PastStep>,
    /// The number of the step that ended last; 0 before the first.
    pub newest_step: u64,
    pub requests: Vec<LiveRequest>,
    /// The number of all requests.
    pub n_requests: usize,
    pub pools: Vec<LivePool>,
    pub pins: Vec<LivePin>,
}

/// Server -> Tokenizer, for `/debug/requests`: the requests that it knows, also while the Scheduler is started again.
#[derive(Debug, Message)]
#[rtype(result = "KnownRequests")]
pub struct GetRequests {
    pub requests: ViewedRequests,
}

/// Answers [`GetRequests`].
#[derive(Clone, Debug, Default)]
pub struct KnownRequests {
    /// The docket's requests: the Scheduler has them, or gets them.
    pub entered: Vec<LiveRequest>,
    /// Requests whose prompt is being encoded or whose grammar is being compiled, or that wait for this.
    pub encoding: Vec<EncodingRequest>,
    /// The number of all requests.
    pub n_requests: usize,
}

/// A request that the docket does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodingRequest {
    pub rid: RequestId,
    /// Since the Tokenizer got the request.
    pub age: Duration,
}
