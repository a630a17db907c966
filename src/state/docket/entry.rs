//! A live request in the docket.

use crate::scheduler::live::{LiveRequest, LiveState};
use crate::scheduler::news::{RequestEnd, RequestTokens};
use crate::scheduler::submission::{Resumption, Submission};
use souffleur_base::error::RequestError;
use souffleur_base::ids::UnitId;

/// Tokens for which memory is reserved at the intake, so that most requests need none later.
const RESERVED_TOKENS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Due to its unit's Scheduler.
    Held,
    /// Sent to its unit's Scheduler.
    Posted,
    /// Ended while no unit had it: none gets it again.
    Ended,
}

#[derive(Debug)]
pub struct Entry {
    request: Submission,
    told: Vec<u32>,
    input_logprobs: u32,
    cached_tokens: Option<u32>,
    loaded_tokens: u32,
    retractions: u32,
    resumptions: u32,
    /// The number of told tokens when it was resumed last.
    told_at_resume: usize,
    entered_s: f64,
    pub(super) running_since_s: Option<f64>,
    /// The terminal event, if it is noted but not yet sent to the client.
    pub(super) end: Option<RequestEnd>,
    pub(super) unit: UnitId,
    pub(super) place: Place,
    /// Some unit has had the request.
    pub(super) was_posted: bool,
}

impl Entry {
    pub(super) fn new(request: Submission, unit: UnitId, now_s: f64) -> Self {
        let max_new_tokens = request.sampling.max_new_tokens as usize;
        Self {
            told: Vec::with_capacity(max_new_tokens.min(RESERVED_TOKENS)),
            request,
            input_logprobs: 0,
            cached_tokens: None,
            loaded_tokens: 0,
            retractions: 0,
            resumptions: 0,
            told_at_resume: 0,
            entered_s: now_s,
            running_since_s: None,
            end: None,
            unit,
            place: Place::Held,
            was_posted: false,
        }
    }

    pub fn request(&self) -> &Submission {
        &self.request
    }

    /// The output tokens noted so far. The client may have got fewer, if the owner died in between.
    pub fn told(&self) -> &[u32] {
        &self.told
    }

    /// Why the request ended, if it has.
    pub fn end(&self) -> Option<&RequestEnd> {
        self.end.as_ref()
    }

    pub fn unit(&self) -> UnitId {
        self.unit
    }

    /// Prompt tokens from the cache and the KV store at the first admission.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_tokens.unwrap_or(0)
    }

    /// Prompt tokens from the KV store, in any generation.
    pub fn loaded_tokens(&self) -> u32 {
        self.loaded_tokens
    }

    pub fn retractions(&self) -> u32 {
        self.retractions
    }

    /// True if its unit has computed its prompt and the tokens told before.
    pub(super) fn is_prefilled(&self) -> bool {
        self.place == Place::Posted && self.told.len() > self.told_at_resume
    }

    /// True if the request continues in another generation or unit, or after a withdrawal.
    pub fn has_resumed(&self) -> bool {
        self.resumptions > 0
    }

    pub(super) fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// Several tokens may come at once, for speculation or a grammar's opening.
    pub(super) fn note(&mut self, update: &RequestTokens) {
        self.told.extend_from_slice(&update.tokens);
        if let Some(logprobs) = &update.logprobs {
            self.input_logprobs += logprobs.input.len() as u32;
        }
        if !update.tokens.is_empty() || update.logprobs.is_some() {
            self.cached_tokens.get_or_insert(update.cached_tokens);
        }
        self.loaded_tokens = self.loaded_tokens.max(update.loaded_tokens);
        self.retractions = self.retractions.max(update.num_retractions);
        self.end = update.end.as_deref().cloned();
    }

    pub(super) fn submission(&self, now_s: f64) -> Submission {
        Submission {
            submitted_s: self.entered_s - now_s,
            ..self.request.clone()
        }
    }

    /// Continues the request in another generation, or after a withdrawal.
    pub(super) fn resume(&mut self, now_s: f64) -> Resumption {
        self.resumptions += 1;
        self.told_at_resume = self.told.len();
        let since = self.running_since_s.map(|since_s| now_s - since_s);
        Resumption {
            submission: self.request.clone(),
            told: self.told.as_slice().into(),
            input_logprobs: self.input_logprobs,
            // An admission whose result was not noted is not reported a second time.
            cached_tokens: self.cached_tokens.or(since.map(|_| 0)),
            retractions: self.retractions,
            resumptions: self.resumptions,
            age_s: now_s - self.entered_s,
            running_s: since,
        }
    }

    /// The error if a time limit of the request passed before `now_s`.
    pub(super) fn overrun(&self, now_s: f64) -> Option<RequestError> {
        let timeouts = &self.request.timeouts;
        timeouts.overrun(self.entered_s, self.running_since_s, now_s)
    }

    /// The request without the memory that it may have in a Scheduler.
    pub(super) fn live(&self, now_s: f64) -> LiveRequest {
        let since = self.running_since_s.map(|since_s| now_s - since_s);
        LiveRequest {
            intake: self.request.intake,
            rid: self.request.rid.clone(),
            state: match self.place {
                Place::Held => LiveState::Held,
                Place::Posted | Place::Ended => LiveState::Waiting,
            },
            prompt: self.request.prompt.len(),
            cached: 0,
            computed: 0,
            output: self.told.len(),
            loaded: self.loaded_tokens as usize,
            pages: 0,
            retractions: self.retractions,
            losses: 0,
            resumptions: self.resumptions,
            queued_s: now_s - self.entered_s - since.unwrap_or(0.0),
            running_s: since.unwrap_or(0.0),
        }
    }
}
