//! The Tokenizer actor: encodes prompts, decodes outputs, and sends all events of a request.

pub mod arbiter;
mod call;
mod contain;
mod drafts;
mod estate;
mod images;
mod infill;
mod inline;
mod input_ids;
mod intake;
mod known;
mod lanes;
mod live;
mod logprob_checks;
mod misses;
mod output;
mod prepare;
mod routing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Recipient,
    ResponseActFuture, WrapFuture,
};

use crate::death::{Obituary, StopActor};
use crate::links::SchedulerLinks;
use crate::mailbox::Posted;
use crate::messages::{
    CancelAll, CancelRequest, Drain, Generate, GetPrefixReport, Relink, ResumeRequests,
    RouterStarted, StopFound, Submit, TokensReady,
};
use souffleur_base::beat::Beat;
use souffleur_base::ids::{IntakeId, RequestId, UnitId};
use souffleur_chaos::{self as chaos, Chaos, Phase};
use souffleur_grammar::GrammarCompiler;
use souffleur_metrics::RequestMetrics;
use souffleur_model::text::{TextModel, TurnMarks};
use souffleur_request::RequestTimeouts;
use souffleur_request::admission::Admission;
use souffleur_state::cache::prefix_history::{HistoryLimits, PrefixReport};
use souffleur_state::docket::Post;
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::scheduler::IntakeLimits;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};

use contain::{contain, panicked};
pub use estate::{Estate, HandOver};
pub use images::ImageSettings;
use live::Progress;
use misses::Misses;
pub use output::AnswerFormats;

/// Interval of the search for requests whose time limit has passed and that no Scheduler ends.
const DEADLINE_SWEEP: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct TokenizerSettings {
    /// The tokenizer; `None` if prompts and outputs are token ids only.
    pub text: Option<Arc<TextModel>>,
    pub formats: AnswerFormats,
    /// Compiles the grammars of outputs that follow one; `None` without a tokenizer.
    pub grammars: Option<Arc<GrammarCompiler>>,
    /// Token patterns at which chats are likely to diverge; `None` if no layer has states or windows.
    pub turns: Option<TurnMarks>,
    /// Rows of the output head. Token ids must be smaller.
    pub vocab_size: usize,
    /// Size of the embeddings in prompts and results; `None` if the executor supports neither.
    pub hidden_size: Option<usize>,
    pub images: ImageSettings,
    pub limits: IntakeLimits,
    /// The length (prompt and longest output) above which a sequence uses LongRoPE's long factors; `None` if the
    /// model has none.
    pub long_above: Option<usize>,
    /// Bytes of text that may wait for slow readers of one call.
    pub client_backlog_bytes: usize,
    /// Maximum number of prompt log probabilities of one call.
    pub max_logprob_entries: usize,
    pub timeouts: RequestTimeouts,
    /// Limits of the history of prompts and evictions; `None` to diagnose no misses.
    pub prefix_history: Option<HistoryLimits>,
    pub request_limits: RequestLimits,
    /// The most query tokens of a row in a step; 0 if the executor does not speculate.
    pub room: u32,
    /// Limits the requests in flight. A request without a permit takes one here.
    pub admission: Arc<Admission>,
    /// The Router chooses the units of requests; otherwise there is one unit.
    pub has_replicas: bool,
}

pub struct Tokenizer {
    settings: TokenizerSettings,
    /// The Watchdog gets it when the Tokenizer dies.
    estate: Box<Estate>,
    /// The misses of each unit since its last start; empty if no misses are diagnosed.
    misses: BTreeMap<UnitId, Misses>,
    /// Links to the units that were started.
    links: BTreeMap<UnitId, SchedulerLinks>,
    /// `None` with one unit, and before the first Router.
    router: Option<RouterStarted>,
    metrics: RequestMetrics,
    /// When an actor of a unit died after which live requests have got no result of the unit yet.
    paused_since: BTreeMap<UnitId, Instant>,
    heir: Recipient<HandOver>,
    obituary: Obituary,
    chaos: Chaos,
    beat: Beat,
    /// The interval of the beats; `None` if no thread watches them.
    beats_every: Option<Duration>,
}

impl Tokenizer {
    /// `estate` is that of the Tokenizer before, if one has died.
    pub fn new(
        settings: TokenizerSettings,
        metrics: RequestMetrics,
        estate: Option<Box<Estate>>,
        (heir, obituary): (Recipient<HandOver>, Obituary),
    ) -> Self {
        // Registers the metrics before the first unit has started.
        let misses = settings.prefix_history.map(Misses::new);
        Self {
            misses: misses
                .map(|misses| (UnitId::FIRST, misses))
                .into_iter()
                .collect(),
            settings,
            estate: estate.unwrap_or_default(),
            links: BTreeMap::new(),
            router: None,
            metrics,
            paused_since: BTreeMap::new(),
            heir,
            obituary,
            chaos: Chaos::default(),
            beat: Beat::default(),
            beats_every: None,
        }
    }

    pub fn with_chaos(mut self, chaos: Chaos) -> Self {
        self.chaos = chaos;
        self
    }

    /// The Tokenizer beats at this interval while its Arbiter makes progress.
    pub fn beating(mut self, beat: Beat, every: Option<Duration>) -> Self {
        self.beat = beat;
        self.beats_every = every;
        self
    }

    /// Sends one request's tokens to its client. At a stop string, returns the request's unit and id, and the number of
    /// kept tokens.
    fn pass_on(&mut self, mut update: RequestTokens) -> Option<(UnitId, (RequestId, usize))> {
        let intake = update.intake;
        let Estate { active, docket, .. } = &mut *self.estate;
        // Late tokens of a request whose stop string was found, or whose client is gone, are dropped.
        let active = active.get_mut(&intake)?;
        let (settings, metrics, chaos) = (&self.settings, &self.metrics, &self.chaos);
        let mut is_damaged = false;
        let progress = contain("the text of an output", || {
            if std::mem::replace(&mut is_damaged, true) {
                let told = docket.get(intake).map_or(&[][..], |entry| entry.told());
                active.begin_text_again(told, settings);
            }
            let rid = active.rid().as_str();
            chaos.strike_request(chaos::Actor::Tokenizer, Phase::Middle, "TokensReady", rid);
            active.advance(&mut update, settings, metrics)
        });
        match progress {
            Some(Progress::Continues) => None,
            Some(Progress::Ended) => {
                self.forget(intake);
                None
            }
            Some(Progress::Stopped { kept }) => {
                let (unit, rid) = self.forget(intake)?;
                Some((unit, (rid, kept)))
            }
            Some(Progress::Abandoned) => {
                self.abandon(intake);
                None
            }
            None => {
                active.fail(panicked(), metrics);
                self.abandon(intake);
                None
            }
        }
    }

    /// Sends results to their clients, and the stops that this finds to the Schedulers.
    fn pass_on_all(&mut self) {
        let mut stops: BTreeMap<UnitId, Vec<(RequestId, usize)>> = BTreeMap::new();
        while let Some(update) = self.estate.in_hand.pop_front() {
            if let Some((unit, stop)) = self.pass_on(update) {
                stops.entry(unit).or_default().push(stop);
            }
        }
        for (unit, stops) in stops {
            if let Some(links) = self.links.get(&unit) {
                links.stop_found.post(StopFound { stops });
            }
        }
    }

    /// Removes a request whose terminal event was sent, and cancels it in the Scheduler.
    fn abandon(&mut self, intake: IntakeId) {
        if let Some((unit, rid)) = self.forget(intake)
            && let Some(links) = self.links.get(&unit)
        {
            links.cancel.do_send(CancelRequest { rid, flag: None });
        }
    }

    /// Removes a request and returns its unit and its id, which another one may use from now on.
    fn forget(&mut self, intake: IntakeId) -> Option<(UnitId, RequestId)> {
        let entry = self.estate.docket.ended(intake);
        self.tell_router_of_end(intake);
        let active = self.estate.active.remove(&intake)?;
        self.estate.intakes.remove(active.rid());
        self.estate.notify_if_idle();
        Some((entry?.unit(), active.into_rid()))
    }

    /// Sends the Schedulers the requests that are due.
    fn post_due(&mut self) {
        let now_s = self.estate.now_s();
        for (&unit, links) in &self.links {
            for post in self.estate.docket.posts(unit, now_s) {
                match post {
                    Post::Submit(request) => links.submit.post(Submit { request }),
                    Post::Resume(resume) => {
                        self.metrics.resumes().resumed(resume.requests.len());
                        let resume = Box::new(resume);
                        links.resume.post(ResumeRequests { resume });
                    }
                    Post::Withdraw { rid, kept } => {
                        let stops = vec![(rid, kept)];
                        links.stop_found.post(StopFound { stops });
                    }
                }
            }
        }
    }

    fn end_overdue(&mut self) {
        let now_s = self.estate.now_s();
        let overdue = self.estate.docket.overdue(now_s);
        if overdue.is_empty() {
            return;
        }
        for (intake, error) in overdue {
            if let Some(active) = self.estate.active.get_mut(&intake) {
                active.fail(error, &self.metrics);
            }
            self.abandon(intake);
        }
        // The next trial may begin.
        self.post_due();
    }

    fn admitted(&mut self, intake: IntakeId, at: Instant) {
        let at_s = self.estate.seconds_at(at);
        self.estate.docket.admitted(intake, at_s);
        if let Some(active) = self.estate.active.get_mut(&intake) {
            active.admitted(at);
        }
    }

    /// Ends a request that caused a death twice, and refuses equal ones for a while.
    fn convict(&mut self, intake: IntakeId) {
        let now_s = self.estate.now_s();
        let Estate {
            docket,
            quarantine,
            active,
            ..
        } = &mut *self.estate;
        let Some(entry) = docket.get(intake) else {
            return;
        };
        quarantine.convict(entry.request(), now_s);
        tracing::error!(
            rid = entry.request().rid.as_str(),
            "a request crashed the engine's actors repeatedly: it fails, and identical ones are refused for ten minutes"
        );
        if let (Some(RequestEnd::Failed(error)), Some(active)) =
            (entry.end(), active.get_mut(&intake))
        {
            active.fail(error.clone(), &self.metrics);
        }
        self.forget(intake);
    }

    fn strike(&self, phase: Phase, message: &'static str) {
        self.chaos.strike(chaos::Actor::Tokenizer, phase, message);
    }

    /// Continues the work of a dead Tokenizer.
    fn take_over(&mut self, ctx: &mut Context<Self>) {
        self.estate.in_hand = self.estate.take_missing().into();
        self.pass_on_all();
        self.continue_intake(ctx);
    }
}

impl Drop for Tokenizer {
    fn drop(&mut self) {
        self.beat.rest();
        if self.obituary.is_armed() {
            self.heir
                .do_send(HandOver(std::mem::take(&mut self.estate)));
        }
    }
}

impl Actor for Tokenizer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(every) = self.beats_every {
            self.beat.work();
            ctx.run_interval(every, |tokenizer, _| tokenizer.beat.beat());
        }
        ctx.run_interval(DEADLINE_SWEEP, |tokenizer, _| tokenizer.end_overdue());
        self.take_over(ctx);
    }
}

impl Handler<Relink> for Tokenizer {
    type Result = ();

    fn handle(&mut self, relink: Relink, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "Relink");
        let unit = relink.at.unit;
        self.links.insert(unit, relink.links);
        if let Some(limits) = self.settings.prefix_history {
            // The new unit has an empty tree.
            self.misses.insert(unit, Misses::new(limits));
        }
        let convicted = self.estate.docket.open(relink.at, &relink.suspicion);
        if let Some(convicted) = convicted {
            self.convict(convicted);
        }
        let since = self.paused_since.remove(&unit).or(relink.down_since);
        // The requests may have moved to other units.
        if let Some(since) = since.filter(|_| self.estate.docket.has_requests_of(unit)) {
            self.paused_since.insert(unit, since);
        }
        self.let_router_adopt(Some(unit));
        self.post_due();
    }
}

impl Handler<Generate> for Tokenizer {
    type Result = ();

    fn handle(&mut self, generate: Generate, ctx: &mut Context<Self>) {
        self.strike(Phase::Entry, "Generate");
        self.queue_call(generate, ctx);
        self.strike(Phase::Exit, "Generate");
    }
}

impl Handler<Posted<TokensReady>> for Tokenizer {
    type Result = ();

    fn handle(&mut self, posted: Posted<TokensReady>, _: &mut Context<Self>) {
        let (ready, _timer) = posted.open();
        self.strike(Phase::Entry, "TokensReady");
        let TokensReady {
            from,
            mut batch,
            prefixes,
            admissions,
        } = ready;
        self.drop_results_of_moved(from, &mut batch);
        if !self.estate.docket.note(from, &batch) {
            self.metrics.resumes().stale();
            tracing::debug!(
                generation = from.generation,
                "results of an older generation dropped"
            );
            return;
        }
        self.tell_router_of_tokens(from, &batch);
        if !batch.is_empty()
            && let Some(since) = self.paused_since.remove(&from.unit)
        {
            self.metrics.resumes().paused(since.elapsed());
        }
        for (intake, at) in admissions {
            self.admitted(intake, at);
        }
        self.estate.in_hand = batch.into();
        self.strike(Phase::Middle, "noted");
        self.pass_on_all();
        self.post_due();
        if let Some(misses) = self.misses.get_mut(&from.unit) {
            misses.record(prefixes);
        }
        self.strike(Phase::Exit, "TokensReady");
    }
}

impl Handler<GetPrefixReport> for Tokenizer {
    type Result = Option<Box<PrefixReport>>;

    fn handle(&mut self, asked: GetPrefixReport, _: &mut Context<Self>) -> Self::Result {
        let text = self.settings.text.as_deref();
        let mut units = self.misses.values();
        units.find_map(|misses| misses.report(&asked.rid, text))
    }
}

impl Handler<CancelRequest> for Tokenizer {
    type Result = ();

    /// Raises the request's flag, which the next Scheduler reads if this one has died.
    fn handle(&mut self, cancel: CancelRequest, _: &mut Context<Self>) {
        if cancel.flag.is_none() {
            self.estate.cancel(&cancel.rid);
        }
        // A Scheduler counts ids that are unknown.
        let unit = self.estate.unit_of(&cancel.rid).unwrap_or(UnitId::FIRST);
        if let Some(links) = self.links.get(&unit) {
            links.cancel.do_send(cancel);
        }
    }
}

impl Handler<CancelAll> for Tokenizer {
    type Result = ();

    fn handle(&mut self, _: CancelAll, _: &mut Context<Self>) {
        self.estate.cancel_all();
        for links in self.links.values() {
            links.cancel_all.do_send(CancelAll);
        }
    }
}

impl Handler<Drain> for Tokenizer {
    type Result = ResponseActFuture<Self, ()>;

    /// Passes the message on when no request is left, in any generation.
    fn handle(&mut self, _: Drain, _: &mut Context<Self>) -> Self::Result {
        let idle = self.estate.idle().into_actor(self);
        let drained = idle.then(|_, tokenizer, _| {
            let links = tokenizer.links.values();
            let schedulers: Vec<_> = links.map(|links| links.drain.clone()).collect();
            let drained = async move {
                for scheduler in schedulers {
                    // A Scheduler that has stopped has no memory to release.
                    let _ = scheduler.send(Drain).await;
                }
            };
            drained.into_actor(tokenizer)
        });
        Box::pin(drained)
    }
}

impl Handler<StopActor> for Tokenizer {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        self.obituary.disarm();
        ctx.stop();
    }
}
