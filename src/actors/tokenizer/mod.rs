//! The Tokenizer actor: encodes prompts, decodes outputs, and sends all events of a request.

mod call;
mod infill;
mod inline;
mod intake;
mod lanes;
mod live;
mod logprob_checks;
mod misses;
mod output;
mod prepare;

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient, ResponseFuture};
use rustc_hash::FxHashMap;

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{
    CancelAll, CancelRequest, Drain, Generate, GetPrefixReport, StopFound, Submit, TokensReady,
};
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_grammar::GrammarCompiler;
use souffleur_metrics::RequestMetrics;
use souffleur_model::text::{TextModel, TurnMarks};
use souffleur_request::RequestTimeouts;
use souffleur_request::admission::Admission;
use souffleur_state::cache::prefix_history::{HistoryLimits, PrefixReport};
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::scheduler::IntakeLimits;
use souffleur_state::scheduler::news::RequestTokens;

use intake::Intake;
use live::{ActiveRequest, Progress};
use misses::Misses;
pub use output::AnswerFormats;

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
    /// Limits the requests in flight. A request without a permit takes one here.
    pub admission: Arc<Admission>,
}

pub struct Links {
    pub submit: Mailbox<Submit>,
    pub stop_found: Mailbox<StopFound>,
    /// Requests whose client is gone.
    pub cancel: Recipient<CancelRequest>,
    pub cancel_all: Recipient<CancelAll>,
    pub drain: Recipient<Drain>,
}

pub struct Tokenizer {
    settings: TokenizerSettings,
    active: FxHashMap<IntakeId, ActiveRequest>,
    intakes: FxHashMap<RequestId, IntakeId>,
    intake: Intake,
    next_intake: IntakeId,
    misses: Option<Misses>,
    links: Links,
    metrics: RequestMetrics,
    note: DeathNote,
}

impl Tokenizer {
    pub fn new(
        settings: TokenizerSettings,
        links: Links,
        metrics: RequestMetrics,
        note: DeathNote,
    ) -> Self {
        Self {
            misses: settings.prefix_history.map(Misses::new),
            settings,
            active: FxHashMap::default(),
            intakes: FxHashMap::default(),
            intake: Intake::new(),
            next_intake: IntakeId::new(0),
            links,
            metrics,
            note,
        }
    }

    /// Sends one request's tokens to its client. At a stop string, returns the request's id and number of kept tokens.
    fn pass_on(&mut self, update: RequestTokens) -> Option<(RequestId, usize)> {
        let intake = update.intake;
        // Late tokens of a request whose stop string was found, or whose client is gone, are dropped.
        let active = self.active.get_mut(&intake)?;
        match active.advance(update, &self.settings, &self.metrics) {
            Progress::Continues => None,
            Progress::Ended => {
                self.forget(intake);
                None
            }
            Progress::Stopped { kept } => self.forget(intake).map(|rid| (rid, kept)),
            Progress::Abandoned => {
                let rid = self.forget(intake)?;
                self.links.cancel.do_send(CancelRequest { rid, flag: None });
                None
            }
        }
    }

    /// Removes a request and returns its id, which another one may use from now on.
    fn forget(&mut self, intake: IntakeId) -> Option<RequestId> {
        let active = self.active.remove(&intake)?;
        self.intakes.remove(active.rid());
        Some(active.into_rid())
    }
}

impl Actor for Tokenizer {
    type Context = Context<Self>;
}

impl Handler<Generate> for Tokenizer {
    type Result = ();

    fn handle(&mut self, generate: Generate, ctx: &mut Context<Self>) {
        self.queue_call(generate, ctx);
    }
}

impl Handler<Posted<TokensReady>> for Tokenizer {
    type Result = ();

    fn handle(&mut self, posted: Posted<TokensReady>, _: &mut Context<Self>) {
        let (ready, _timer) = posted.open();
        let TokensReady {
            batch,
            prefixes,
            admissions,
        } = ready;
        for (intake, at) in admissions {
            if let Some(active) = self.active.get_mut(&intake) {
                active.admitted(at);
            }
        }
        let mut stops = Vec::new();
        for update in batch {
            stops.extend(self.pass_on(update));
        }
        if !stops.is_empty() {
            self.links.stop_found.post(StopFound { stops });
        }
        if let Some(misses) = &mut self.misses {
            misses.record(prefixes);
        }
    }
}

impl Handler<GetPrefixReport> for Tokenizer {
    type Result = Option<Box<PrefixReport>>;

    fn handle(&mut self, asked: GetPrefixReport, _: &mut Context<Self>) -> Self::Result {
        let text = self.settings.text.as_deref();
        self.misses.as_ref()?.report(&asked.rid, text)
    }
}

impl Handler<CancelAll> for Tokenizer {
    type Result = ();

    fn handle(&mut self, cancel: CancelAll, _: &mut Context<Self>) {
        self.intake.cancel_all();
        self.links.cancel_all.do_send(cancel);
    }
}

impl Handler<Drain> for Tokenizer {
    type Result = ResponseFuture<()>;

    /// Passes the message on after all earlier requests, also those still being encoded.
    fn handle(&mut self, drain: Drain, _: &mut Context<Self>) -> Self::Result {
        let emptied = self.intake.emptied();
        let scheduler = self.links.drain.clone();
        Box::pin(async move {
            // A Tokenizer or a Scheduler that has stopped has no requests left.
            let _ = emptied.await;
            let _ = scheduler.send(drain).await;
        })
    }
}

impl Handler<StopActor> for Tokenizer {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
