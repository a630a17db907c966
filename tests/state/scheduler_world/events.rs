//! The events that clients and hosts cause in a [`World`]: requests, cancels, pins, flushes, policy changes.

use std::sync::Arc;

use souffleur_base::error::RequestError;
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_request::CancelFlag;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::grammar::Grammar;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::IntakeLimits;
use souffleur_state::scheduler::submission::Submission;

use crate::policy_model::priority_key;

use super::{Ask, End, RequestView, World};

impl World {
    fn intake(&self) -> IntakeLimits {
        let page_size = self.states.cache.page_size();
        let capacity_tokens = page_size.tokens_in(self.setup.n_pages as usize);
        IntakeLimits {
            context_length: capacity_tokens + 1,
            capacity_tokens,
            page_size,
        }
    }

    /// Submits a request and returns its number; `None` when the prompt can never fit.
    pub fn submit(&mut self, ask: Ask) -> Option<usize> {
        self.submit_flagged(ask, CancelFlag::default())
    }

    pub fn submit_flagged(&mut self, mut ask: Ask, flag: CancelFlag) -> Option<usize> {
        if self.setup.clips {
            let clipped = self
                .intake()
                .clip_max_new_tokens(ask.prompt.len(), ask.max_new_tokens);
            ask.max_new_tokens = clipped.ok()?;
        }
        let number = self.views.len();
        let (rid, seed) = (RequestId::new(format!("r{number}")), number as u64);
        let sampling = SamplingParams {
            max_new_tokens: ask.max_new_tokens as u32,
            ignore_eos: ask.ignore_eos,
            stop_token_ids: ask.stop_token.into_iter().collect(),
            sampling_seed: Some(seed),
            speculative_num_draft_tokens: ask.num_draft_tokens,
            ..SamplingParams::default()
        };
        let logprobs = ask.logprob_start.map(|start| LogprobWish {
            start: Some(start),
            ..LogprobWish::default()
        });
        let submission = Submission {
            rid: rid.clone(),
            intake: IntakeId::new(number as u64),
            prompt: Arc::from(ask.prompt.as_slice()),
            namespace: Namespace::new(None, ask.salt),
            sampling: Arc::new(sampling),
            logprobs: logprobs.map(Arc::new),
            opening: ask.opening().into(),
            grammar: ask
                .grammar
                .clone()
                .map(|grammar| Arc::new(grammar) as Arc<dyn Grammar>),
            anchors: ask.anchors.as_slice().into(),
            vectors: None,
            images: None,
            bypasses_cache: ask.bypasses_cache,
            pooling: None,
            priority: ask.priority,
            cancel: flag.clone(),
            submitted_s: self.now_s,
            timeouts: ask.timeouts,
            draft_texts: Default::default(),
        };
        self.watch.submitted(&ask);
        self.unfinished.push(number);
        let view = RequestView::new(ask, rid, seed, flag);
        let rank = priority_key(self.setup.priority_order(), &view);
        self.waits
            .arrived(view.ask.prompt.len(), view.ask.max_new_tokens, rank);
        if view.ask.room() > 1 {
            self.waits.note_drafts(number);
        }
        self.views.push(view);
        self.order.note_arrival();
        self.states.scheduler.submit(submission);
        self.take_news();
        // A rejected request gets no sequence id.
        if !matches!(
            self.views[number].failure(),
            Some(RequestError::Overloaded { .. })
        ) {
            self.numbers.push(number);
        }
        self.after_event();
        Some(number)
    }

    /// Submits all requests before anything is planned.
    pub fn submit_all(&mut self, asks: &mut dyn Iterator<Item = Ask>) {
        self.defers_plans = true;
        for ask in asks {
            self.submit(ask);
        }
        self.defers_plans = false;
        self.start_plans();
    }

    pub fn raise_flag(&mut self, number: usize) {
        self.views[number].flag.raise();
    }

    pub fn cancel(&mut self, number: usize) {
        self.raise_flag(number);
        let view = &mut self.views[number];
        view.steps_since_cancel.get_or_insert(0);
        self.states.scheduler.cancel(&view.rid.clone(), None);
        self.after_event();
        assert!(self.views[number].end.is_some(), "cancelled, but not ended");
    }

    /// Reports a stop string that ends with output token `kept`, as the tokenizer does.
    pub fn stop_found(&mut self, number: usize, kept: usize) {
        let view = &mut self.views[number];
        if view.end.is_some() {
            self.states.scheduler.stop_found(&view.rid.clone(), kept);
            return self.after_event();
        }
        view.end = Some(End::StopFound);
        self.watch.ended(number);
        self.waits.ended(number);
        let view = &mut self.views[number];
        view.steps_since_cancel.get_or_insert(0);
        self.states.scheduler.stop_found(&view.rid.clone(), kept);
        self.after_event();
    }

    pub fn pin(&mut self, tokens: &[u32], expires_s: u64) {
        let pinned = self
            .states
            .scheduler
            .pin(Namespace::default(), Arc::from(tokens), expires_s);
        match pinned {
            Ok(pin) => self.pins.push(pin),
            Err(error) => assert!(matches!(error, RequestError::Overloaded { limit: 4, .. })),
        }
        self.after_event();
    }

    /// Pins a prefix softly under the next free name; replaces the previous soft pin if `replaces`.
    pub fn pin_softly(&mut self, tokens: &[u32], expires_s: u64, replaces: bool) -> u64 {
        let last = self.soft_pins;
        self.soft_pins += 1;
        self.states.scheduler.pin_softly(
            self.soft_pins,
            replaces.then_some(last),
            Namespace::default(),
            Arc::from(tokens),
            expires_s,
        );
        self.after_event();
        self.soft_pins
    }

    pub fn unpin_softly(&mut self, name: u64) -> bool {
        let was_held = self.states.scheduler.unpin_softly(name);
        self.after_event();
        was_held
    }

    pub fn unpin_oldest(&mut self) {
        if !self.pins.is_empty() {
            let pin = self.pins.remove(0);
            self.states.scheduler.unpin(pin);
            self.after_event();
        }
    }

    pub fn expire_pins(&mut self, now_s: u64) {
        self.states.scheduler.expire_pins(now_s);
        self.after_event();
    }

    /// Requests a flush of the cache; returns its number, or the error code.
    pub fn flush_cache(&mut self) -> Result<u64, &'static str> {
        let requested = self.states.scheduler.flush_cache();
        self.after_event();
        requested.map_err(|error| error.code())
    }

    pub fn pass_time(&mut self, seconds: f64) {
        self.now_s += seconds;
        self.states.scheduler.expire_requests(self.now_s);
        self.after_event();
    }

    pub fn set_paused(&mut self, paused: bool) {
        self.states.scheduler.set_paused(paused);
        self.after_event();
    }

    pub fn set_policy(&mut self, name: &str) {
        assert_eq!(self.states.scheduler.set_policy(name), Ok(()));
        self.after_event();
    }

    pub fn set_eviction_policy(&mut self, name: &str) {
        let set = self.states.scheduler.set_eviction_policy(name);
        assert_eq!(set.is_ok(), self.setup.has_radix_cache);
        self.after_event();
    }

    pub(super) fn after_event(&mut self) {
        self.plans_since_progress = 0;
        self.take_news();
        self.start_plans();
    }
}
