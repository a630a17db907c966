//! The messages by which requests get their replicas. An engine with one unit sends none of them.

use std::sync::Arc;

use actix::Message;

use crate::doors::Doors;
use crate::mailbox::Mailbox;
use souffleur_base::ids::{IntakeId, UnitId};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::supervision::blame::Suspicion;

/// Tokenizer -> Router, once per request, and again to a Router that was started after it: which replica gets the
/// request? Answered by [`Routed`] once a replica lives.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct RouteRequest {
    pub intake: IntakeId,
    /// The prompt and the output tokens so far.
    pub tokens: Arc<[u32]>,
    pub namespace: Namespace,
    pub bypasses_cache: bool,
}

impl RouteRequest {
    /// `told` are the output tokens so far.
    pub(crate) fn of(request: &Submission, told: &[u32]) -> Self {
        let prompt = &request.prompt;
        Self {
            intake: request.intake,
            tokens: if told.is_empty() {
                prompt.clone()
            } else {
                [&prompt[..], told].concat().into()
            },
            namespace: request.namespace.clone(),
            bypasses_cache: request.bypasses_cache,
        }
    }
}

/// Router -> Tokenizer, answers [`RouteRequest`].
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Routed {
    /// The number of the Router. The Tokenizer drops answers of earlier ones.
    pub router: u64,
    pub intake: IntakeId,
    pub unit: UnitId,
}

/// Tokenizer -> Router, once per step of a replica that produced tokens, and at the end of each request.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum RouteNews {
    /// The requests of one `TokensReady` that have got output tokens.
    Generated(Vec<GeneratedTokens>),
    Ended(IntakeId),
}

#[derive(Clone, Copy, Debug)]
pub struct GeneratedTokens {
    pub intake: IntakeId,
    /// The number of output tokens.
    pub tokens: usize,
    /// Prompt tokens that were not cached, with the first output tokens. `None` for a request that continues.
    pub computed: Option<usize>,
}

/// Tokenizer -> Router, after a start of the Router or of a replica: the requests that the replicas have.
#[derive(Message)]
#[rtype(result = "()")]
pub struct AdoptRequests {
    pub requests: Vec<Adopted>,
}

pub struct Adopted {
    pub request: RouteRequest,
    pub unit: UnitId,
    pub is_prefilled: bool,
}

/// Watchdog -> Tokenizer, after a start of the Router or of the Tokenizer: the addresses of the Router. The Tokenizer
/// asks for the requests that have no replica, and tells the Router of the others.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RouterStarted {
    pub number: u64,
    pub links: RouterLinks,
}

/// Watchdog -> Tokenizer, when a unit has died while others run, and when it is not started again: the others get its
/// requests.
#[derive(Message)]
#[rtype(result = "()")]
pub struct UnitDied {
    pub unit: UnitId,
    /// The requests that may have caused the death, which wait until the unit is started again. `None` if it is not
    /// started again.
    pub suspicion: Option<Suspicion>,
}

/// The addresses of a Router for the Tokenizer.
pub struct RouterLinks {
    pub route: Mailbox<RouteRequest>,
    pub news: Mailbox<RouteNews>,
    pub adopt: Mailbox<AdoptRequests>,
}

/// Watchdog -> Router, after a start of the Tokenizer or of the Router.
#[derive(Message)]
#[rtype(result = "()")]
pub struct TokenizerStarted(pub Mailbox<Routed>);

/// Watchdog -> Router: the actors of a replica run from now on.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReplicaStarted {
    pub unit: UnitId,
    pub doors: Box<Doors>,
}

/// Watchdog -> Router: a replica is being replaced, and gets no further request.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct ReplicaDied(pub UnitId);
