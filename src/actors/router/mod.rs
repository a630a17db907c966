//! The Router actor: chooses the replica of each request, and passes the questions of hosts on to the replicas.
//!
//! It knows nothing that the Tokenizer's docket and the Watchdog do not: a Router that has died is started again with
//! the addresses of the replicas, and the Tokenizer tells it which requests they have.

mod hosts;
mod keeper;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, MailboxError, WrapFuture,
};

use crate::death::{Obituary, StopActor};
use crate::doors::Doors;
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{
    AdoptRequests, Adopted, GeneratedTokens, PeekPrefix, ReplicaDied, ReplicaStarted, RouteNews,
    RouteRequest, Routed, TokenizerStarted,
};
use souffleur_base::ids::UnitId;
use souffleur_chaos::{self as chaos, Chaos, Phase};
use souffleur_state::router::{LoadBalance, Prompt, RouterState};

pub use keeper::RouterKeeper;

/// The name of the Router in reports of its death, in faults and in metrics.
pub const ROUTER: &str = "router";

#[derive(Clone, Copy, Debug)]
pub struct RouterSetup {
    pub replicas: u32,
    pub rule: LoadBalance,
    /// Replicas keep no prefixes otherwise: then all prompts bypass the cache.
    pub has_cache: bool,
    /// The computed tokens that count as a replica's recent work.
    pub window_tokens: usize,
}

pub struct Router {
    obituary: Obituary,
    number: u64,
    chaos: Chaos,
    state: RouterState,
    has_cache: bool,
    /// The addresses of the replicas, by their ids; `None` for one that is not started.
    replicas: Vec<Option<Box<Doors>>>,
    /// `None` before the first Tokenizer.
    tokenizer: Option<Mailbox<Routed>>,
    /// Requests that came while no replica ran.
    waiting: Vec<RouteRequest>,
    /// Requests whose cached tokens were asked for so far.
    n_asked: u64,
    /// Requests for which a replica was chosen.
    n_chosen: u64,
    /// Requests with their cached tokens, by their numbers, while one that was asked for before has no answer.
    answered: BTreeMap<u64, (RouteRequest, Vec<Option<usize>>)>,
    /// The names of soft pins whose replicas are being chosen.
    pinning: BTreeSet<u64>,
    started: Instant,
}

impl Router {
    /// Router `number`, none of whose replicas has started.
    pub fn new(setup: RouterSetup, number: u64, obituary: Obituary, chaos: Chaos) -> Self {
        let RouterSetup {
            replicas,
            rule,
            has_cache,
            window_tokens,
        } = setup;
        let mut state = RouterState::new(rule, replicas).with_window(window_tokens);
        for unit in (0..replicas).map(UnitId::new) {
            // They get requests once they are started.
            let _ = state.died(unit);
        }
        Self {
            obituary,
            number,
            chaos,
            state,
            has_cache,
            replicas: (0..replicas).map(|_| None).collect(),
            tokenizer: None,
            waiting: Vec::new(),
            n_asked: 0,
            n_chosen: 0,
            answered: BTreeMap::new(),
            pinning: BTreeSet::new(),
            started: Instant::now(),
        }
    }

    /// Sends the Tokenizer the replica of a request. `cached` has the numbers of its tokens in the replicas' caches.
    fn choose(&mut self, request: RouteRequest, cached: &[Option<usize>]) {
        let intake = request.intake;
        let known = self.state.unit_of(intake);
        let unit = known.or_else(|| {
            let now_s = self.started.elapsed().as_secs_f64();
            self.state
                .route(intake, &prompt_of(&request), cached, now_s)
        });
        match (unit, &self.tokenizer) {
            (Some(unit), Some(tokenizer)) => tokenizer.post(Routed {
                router: self.number,
                intake,
                unit,
            }),
            // The next Tokenizer asks again.
            (Some(_), None) => {}
            (None, _) => self.waiting.push(request),
        }
    }

    /// Chooses in the order of the requests. actix polls the futures that await the answers in another order.
    fn choose_in_order(&mut self, number: u64, request: RouteRequest, cached: Vec<Option<usize>>) {
        self.answered.insert(number, (request, cached));
        while let Some((request, cached)) = self.answered.remove(&self.n_chosen) {
            self.n_chosen += 1;
            self.choose(request, &cached);
        }
    }

    fn strike(&self, message: &'static str) {
        self.chaos
            .strike(chaos::Actor::Router, Phase::Entry, message);
    }
}

fn prompt_of(request: &RouteRequest) -> Prompt<'_> {
    Prompt {
        namespace: &request.namespace,
        tokens: &request.tokens,
        bypasses_cache: request.bypasses_cache,
    }
}

/// The answers of the replicas. One that has died does not answer.
async fn each<T>(
    asked: Vec<Option<impl Future<Output = Result<T, MailboxError>>>>,
) -> Vec<Option<T>> {
    let mut answers = Vec::with_capacity(asked.len());
    for asked in asked {
        answers.push(match asked {
            Some(asked) => asked.await.ok(),
            None => None,
        });
    }
    answers
}

impl Actor for Router {
    type Context = Context<Self>;
}

impl Handler<Posted<RouteRequest>> for Router {
    type Result = ();

    fn handle(&mut self, posted: Posted<RouteRequest>, ctx: &mut Context<Self>) {
        let (mut request, _timer) = posted.open();
        self.strike("RouteRequest");
        request.bypasses_cache |= !self.has_cache;
        if !self.state.wants_prefixes() || request.bypasses_cache {
            return self.choose(request, &[]);
        }
        let peek = |doors: &Doors| {
            doors.peek.send(PeekPrefix {
                namespace: request.namespace.clone(),
                tokens: request.tokens.clone(),
            })
        };
        let replicas = self.replicas.iter();
        let asked: Vec<_> = replicas.map(|doors| doors.as_deref().map(peek)).collect();
        let number = self.n_asked;
        self.n_asked += 1;
        let answers = each(asked).into_actor(self);
        ctx.spawn(answers.map(move |cached, router, _| {
            router.choose_in_order(number, request, cached);
        }));
    }
}

impl Handler<Posted<RouteNews>> for Router {
    type Result = ();

    fn handle(&mut self, posted: Posted<RouteNews>, _: &mut Context<Self>) {
        let (news, _timer) = posted.open();
        self.strike("RouteNews");
        let now_s = self.started.elapsed().as_secs_f64();
        match news {
            RouteNews::Generated(tokens) => {
                for GeneratedTokens {
                    intake,
                    tokens,
                    computed,
                } in tokens
                {
                    if let Some(computed) = computed {
                        self.state.computed(intake, computed);
                    }
                    self.state.prefilled(intake, now_s);
                    self.state.generated(intake, tokens);
                }
            }
            RouteNews::Ended(intake) => {
                self.state.ended(intake);
                self.waiting.retain(|request| request.intake != intake);
            }
        }
    }
}

impl Handler<Posted<AdoptRequests>> for Router {
    type Result = ();

    fn handle(&mut self, posted: Posted<AdoptRequests>, _: &mut Context<Self>) {
        let (AdoptRequests { requests }, _timer) = posted.open();
        self.strike("AdoptRequests");
        let now_s = self.started.elapsed().as_secs_f64();
        for adopted in requests {
            let Adopted {
                mut request,
                unit,
                is_prefilled,
            } = adopted;
            request.bypasses_cache |= !self.has_cache;
            // One whose replica does not run is adopted when it does.
            let intake = request.intake;
            let is_adopted = self.state.adopt(intake, unit, &prompt_of(&request), now_s);
            if is_adopted && is_prefilled {
                self.state.prefilled(intake, now_s);
            }
        }
    }
}

impl Handler<TokenizerStarted> for Router {
    type Result = ();

    fn handle(&mut self, TokenizerStarted(tokenizer): TokenizerStarted, _: &mut Context<Self>) {
        self.tokenizer = Some(tokenizer);
        // The Tokenizer asks for them.
        self.waiting.clear();
    }
}

impl Handler<ReplicaStarted> for Router {
    type Result = ();

    fn handle(&mut self, started: ReplicaStarted, _: &mut Context<Self>) {
        let ReplicaStarted { unit, doors } = started;
        self.replicas[unit.index()] = Some(doors);
        self.state.revived(unit);
        for request in std::mem::take(&mut self.waiting) {
            self.choose(request, &[]);
        }
    }
}

impl Handler<ReplicaDied> for Router {
    type Result = ();

    /// The requests of the replica stay with it: the Tokenizer sends them again when the replica is started.
    fn handle(&mut self, ReplicaDied(unit): ReplicaDied, _: &mut Context<Self>) {
        self.replicas[unit.index()] = None;
        let _ = self.state.died(unit);
    }
}

impl Handler<StopActor> for Router {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        self.obituary.disarm();
        ctx.stop();
    }
}
