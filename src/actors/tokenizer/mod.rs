//! The Tokenizer: text to ids at intake, ids to text on the way out. It alone emits a request's events.

mod intake;
mod live;

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};
use rustc_hash::FxHashMap;

use crate::actors::mailbox::{Mailbox, Posted};
use crate::actors::messages::{CancelRequest, Generate, StopFound, Submit, TokensReady};
use crate::actors::watchdog::{DeathNote, StopActor, stop_actor};
use crate::ids::RequestId;
use crate::metrics::RequestMetrics;
use crate::model::text::TextModel;
use crate::state::news::RequestTokens;
use crate::state::scheduler::IntakeLimits;

use live::{Live, Step};

/// What the Tokenizer needs to know of model and limits.
#[derive(Clone)]
pub struct TokenizerSettings {
    /// `None`: token ids in, token ids out.
    pub text: Option<Arc<TextModel>>,
    /// Rows of the output head: larger ids are refused.
    pub vocab_size: usize,
    /// What can ever fit.
    pub limits: IntakeLimits,
    /// Bytes of text that may wait for a slow reader.
    pub client_backlog_bytes: usize,
}

/// The actor around tokenizer, chat template and the requests under way.
pub struct Tokenizer {
    settings: TokenizerSettings,
    live: FxHashMap<RequestId, Live>,
    submit: Mailbox<Submit>,
    stop_found: Mailbox<StopFound>,
    cancel: Recipient<CancelRequest>,
    metrics: RequestMetrics,
    note: DeathNote,
}

impl Tokenizer {
    /// An actor with no request under way.
    pub fn new(
        settings: TokenizerSettings,
        submit: Mailbox<Submit>,
        stop_found: Mailbox<StopFound>,
        cancel: Recipient<CancelRequest>,
        metrics: RequestMetrics,
        note: DeathNote,
    ) -> Self {
        Self {
            settings,
            live: FxHashMap::default(),
            submit,
            stop_found,
            cancel,
            metrics,
            note,
        }
    }

    /// Passes one request's news on; returns how many output tokens are kept if a stop string was completed.
    fn pass_on(&mut self, news: RequestTokens) -> Option<usize> {
        let rid = news.rid.clone();
        // Late news of a request whose stop string was found, or whose client is gone.
        let live = self.live.get_mut(&rid)?;
        let step = live.advance(news, &self.settings, &self.metrics);
        match step {
            Step::Goes => None,
            Step::Ended => {
                self.live.remove(&rid);
                None
            }
            Step::Stopped { kept } => {
                self.live.remove(&rid);
                Some(kept)
            }
            Step::Abandoned => {
                self.live.remove(&rid);
                self.cancel.do_send(CancelRequest { rid });
                None
            }
        }
    }
}

impl Actor for Tokenizer {
    type Context = Context<Self>;
}

impl Handler<Generate> for Tokenizer {
    type Result = ();

    fn handle(&mut self, generate: Generate, _: &mut Context<Self>) {
        if let Some((rid, live, submission)) = self.take_in(generate) {
            self.live.insert(rid, live);
            self.submit.post(Submit {
                request: Box::new(submission),
            });
        }
    }
}

impl Handler<Posted<TokensReady>> for Tokenizer {
    type Result = ();

    fn handle(&mut self, posted: Posted<TokensReady>, _: &mut Context<Self>) {
        let (TokensReady { batch }, _timer) = posted.open();
        let mut stops = Vec::new();
        for news in batch {
            let rid = news.rid.clone();
            stops.extend(self.pass_on(news).map(|kept| (rid, kept)));
        }
        if !stops.is_empty() {
            self.stop_found.post(StopFound { stops });
        }
    }
}

impl Handler<StopActor> for Tokenizer {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
