//! Calls in the Tokenizer: requests to submit, the state of their prompts, and limits that they share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::call::{Asked, Prompts, WeightedPrompt};
use crate::messages::Generate;
use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;
use souffleur_metrics::RequestMetrics;
use souffleur_request::sink::EventSink;
use souffleur_request::{CancelFlag, GenerateRequest, Prompt};
use souffleur_state::detok::StopTable;
use souffleur_state::sampling::SamplingParams;

use super::TokenizerSettings;
use super::contain::{contain, panicked};
use super::drafts;
use super::logprob_checks::refuse_input_logprobs;
use super::prepare::{self, CheckedParams, PreparedPrompt};

/// Smallest backlog limit of a request, in bytes, even if its call has many requests.
const MIN_BACKLOG_BYTES: usize = 64 << 10;

/// A call whose requests are not all read yet.
pub(super) struct NewCall {
    unread: std::vec::IntoIter<Asked>,
    n_read: usize,
    pub(super) prompts: Prompts,
    pub(super) checked: CheckedParams,
    pub(super) arrivals: VecDeque<Arrival>,
    /// When the Tokenizer got the call.
    pub(super) since: Instant,
}

pub(super) struct Call {
    pub(super) arrivals: VecDeque<Arrival>,
    pub(super) prompts: Vec<PromptState>,
    pub(super) is_queued: bool,
    n_requests: usize,
    /// Number of prompt log probabilities for the requests checked so far.
    logprob_entries: usize,
    stops: Option<SharedStops>,
    /// The tokens of the last prediction. Most requests of a call have the same one, and the first is charged for it.
    prediction: Option<Arc<[u32]>>,
    /// When the Tokenizer got the call.
    since: Instant,
}

/// A request that has arrived and is not submitted yet.
pub(super) struct Arrival {
    pub(super) request: GenerateRequest,
    pub(super) sink: EventSink,
    pub(super) cancel: CancelFlag,
    pub(super) prompt_index: usize,
}

pub(super) type EncodeResult = Result<PreparedPrompt, RequestError>;

pub(super) enum PromptState {
    /// Encoded on the Tokenizer's thread when the first of its requests is submitted.
    NotEncoded(WeightedPrompt),
    Waiting,
    Encoded(EncodeResult),
}

/// The table of the last list of stop strings. Most requests of a call have the same list.
struct SharedStops {
    strings: Arc<[String]>,
    table: Arc<StopTable>,
}

impl NewCall {
    pub(super) fn new(generate: Generate) -> Self {
        let (asked, prompts, _timer) = generate.open();
        Self {
            arrivals: VecDeque::with_capacity(asked.len()),
            unread: asked.into_iter(),
            n_read: 0,
            prompts,
            checked: CheckedParams::default(),
            since: Instant::now(),
        }
    }

    /// The next request, with its index in the call.
    pub(super) fn next(&mut self) -> Option<(usize, Asked)> {
        let asked = self.unread.next()?;
        self.n_read += 1;
        Some((self.n_read - 1, asked))
    }

    /// Cancels the requests that were not read yet. The intake cancels the others.
    pub(super) fn cancel_unread(&self) {
        let unread = self.unread.as_slice().iter();
        unread.for_each(|asked| asked.cancel.raise());
    }

    /// The ids of the requests, with the time of the call.
    pub(super) fn rids(&self) -> impl Iterator<Item = (&RequestId, Instant)> {
        let read = self.arrivals.iter().map(|arrival| &arrival.request.rid);
        let unread = self.unread.as_slice().iter();
        let unread = unread.map(|asked| &asked.request.rid);
        read.chain(unread).map(move |rid| (rid, self.since))
    }
}

impl Call {
    pub(super) fn new(
        arrivals: VecDeque<Arrival>,
        prompts: Vec<PromptState>,
        since: Instant,
    ) -> Self {
        Self {
            n_requests: arrivals.len(),
            arrivals,
            prompts,
            is_queued: false,
            logprob_entries: 0,
            stops: None,
            prediction: None,
            since,
        }
    }

    /// The ids of the requests that were not submitted, with the time of the call.
    pub(super) fn rids(&self) -> impl Iterator<Item = (&RequestId, Instant)> {
        let arrivals = self.arrivals.iter();
        arrivals.map(move |arrival| (&arrival.request.rid, self.since))
    }

    pub(super) fn can_submit(&self) -> bool {
        let next = self.arrivals.front();
        next.is_some_and(|next| !matches!(self.prompts[next.prompt_index], PromptState::Waiting))
    }

    /// The next request, with its prompt encoded; `None` if the prompt waits in a lane, or if no request is left.
    pub(super) fn next(
        &mut self,
        settings: &TokenizerSettings,
        metrics: &RequestMetrics,
    ) -> Option<Arrival> {
        if !self.can_submit() {
            return None;
        }
        let arrival = self.arrivals.pop_front()?;
        let state = &mut self.prompts[arrival.prompt_index];
        if let PromptState::NotEncoded(weighed) = state
            && !arrival.cancel.is_raised()
        {
            metrics.encoded_prompt_bytes(weighed.weight);
            let is_cancelled = || arrival.cancel.is_raised();
            let grammars = metrics.grammars();
            let encode = || {
                let (prompt, form) = (weighed.prompt.clone(), &weighed.form);
                prepare::prepare(prompt, form, settings, grammars, &is_cancelled)
            };
            let encoded = contain("the encoding of a prompt", encode);
            *state = PromptState::Encoded(encoded.unwrap_or_else(|| Err(panicked())));
        }
        Some(arrival)
    }

    fn encoded(&self, arrival: &Arrival) -> EncodeResult {
        match &self.prompts[arrival.prompt_index] {
            PromptState::Encoded(encoded) => encoded.clone(),
            PromptState::NotEncoded(_) | PromptState::Waiting => Err(cancelled()),
        }
    }

    /// Bytes that may wait for a slow reader of one request: its share of the call's limit.
    pub(super) fn backlog_bytes(&self, settings: &TokenizerSettings) -> usize {
        let limit = settings.client_backlog_bytes;
        (limit / self.n_requests).max(MIN_BACKLOG_BYTES.min(limit))
    }

    pub(super) fn stops(&mut self, strings: &Arc<[String]>) -> Arc<StopTable> {
        let shared = self.stops.as_ref();
        if let Some(shared) = shared.filter(|shared| Arc::ptr_eq(&shared.strings, strings)) {
            return shared.table.clone();
        }
        let table = Arc::new(StopTable::new(strings));
        self.stops = Some(SharedStops {
            strings: strings.clone(),
            table: table.clone(),
        });
        table
    }

    pub(super) fn check_and_clip(
        &mut self,
        arrival: &mut Arrival,
        settings: &TokenizerSettings,
    ) -> Result<(PreparedPrompt, SamplingParams), RequestError> {
        let mut prepared = self.encoded(arrival)?;
        let next = self.arrivals.front();
        if next.is_some_and(|next| next.prompt_index == arrival.prompt_index) {
            prepared.anchor_end();
        }
        if prepared.prompt_embeds.is_some() {
            refuse_input_logprobs(arrival.request.logprobs.as_ref())?;
        }
        let prompt = &prepared.tokens;
        let mut sampling = prepare::check_and_clip(
            &mut arrival.request,
            prompt.len(),
            &mut self.logprob_entries,
            settings,
        )?;
        let (wished, has_vectors) = (
            sampling.speculative_num_draft_tokens,
            prepared.prompt_embeds.is_some(),
        );
        sampling.speculative_num_draft_tokens = drafts::room(wished, has_vectors, settings.room);
        if !prepared.ends.is_empty() && !sampling.ignore_eos {
            let ends = sampling.stop_token_ids.iter().chain(&*prepared.ends);
            sampling.stop_token_ids = ends.copied().collect();
        }
        let mut n_tokens = prompt.len();
        if sampling.speculative_num_draft_tokens.is_some() {
            n_tokens += self.n_new_predicted(&prepared);
        }
        arrival
            .sink
            .charge_prompt(n_tokens)
            .inspect_err(|_| self.prediction = None)?;
        Ok((prepared, sampling))
    }

    /// Number of tokens of a prompt's prediction; 0 if the previous request with one has the same.
    fn n_new_predicted(&mut self, prepared: &PreparedPrompt) -> usize {
        let Some(tokens) = drafts::of_prediction(&prepared.draft_texts) else {
            return 0;
        };
        let previous = self.prediction.replace(tokens.clone());
        if previous.is_some_and(|previous| Arc::ptr_eq(&previous, tokens)) {
            0
        } else {
            tokens.len()
        }
    }
}

impl Arrival {
    /// Drops the request's reference to its prompt, because the call has the prompt.
    pub(super) fn new(asked: Asked, prompt_index: usize) -> Self {
        let Asked {
            mut request,
            sink,
            cancel,
        } = asked;
        request.prompt = Prompt::Tokens(Arc::default());
        Self {
            request,
            sink,
            cancel,
            prompt_index,
        }
    }
}

/// A placeholder that no client sees: the request ends as cancelled.
pub(super) fn cancelled() -> RequestError {
    RequestError::Invalid("the request was cancelled".to_owned())
}
