//! Lanes: a lane is one engine request of an HTTP call or WebSocket. A drop before its end cancels the request.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::{self, SelectAll, Stream};

use super::answers::AnswerCharge;
use super::budget::{BodyCharge, Charges};
use super::error::ApiError;
use super::exchange::ObservedRequest;
use super::line_limit::{LineEnd, LineLimit};
use super::open_requests::ListGuard;
use super::state::AppState;
use super::transcript::{Transcript, Update};
use souffleur_base::error::RequestError;
use souffleur_engine::{Canceller, Generation};
use souffleur_request::{Event, GenerateRequest};

pub(super) struct Lane {
    generation: Generation,
    /// The limit of log probabilities kept for the whole call.
    max_logprob_entries: usize,
    /// The charge for the prompt's parts, held until the first event. By then the prompt has been encoded.
    prompt_charge: Option<Arc<BodyCharge>>,
    _request_charge: Option<Arc<BodyCharge>>,
    answer: Option<AnswerCharge>,
    /// Ends the output at the end of a line, if the request has such a limit.
    line_end: Option<LineEnd>,
    observed: ObservedRequest,
    _listed: ListGuard,
}

impl Lane {
    /// Sends requests to the engine: all of them, or none.
    pub(super) fn open_all(
        state: &Arc<AppState>,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<Self>, ApiError> {
        let engine = &state.serving()?.engine;
        let max_logprob_entries = engine.max_logprob_entries();
        let answer = state
            .answers()
            .charge(&requests, engine.model().context_length)?;
        let mut observed = ObservedRequest::open_all(&requests, &engine.model().served_model_name);
        let generations = engine.generate_all(requests).inspect_err(|error| {
            observed.iter_mut().for_each(|one| one.fail(error));
        })?;
        let lane = |(generation, observed): (Generation, ObservedRequest)| Self {
            _listed: state.open_requests().list(generation.canceller()),
            prompt_charge: None,
            _request_charge: None,
            answer: answer.clone(),
            line_end: None,
            generation,
            max_logprob_entries,
            observed,
        };
        Ok(generations.into_iter().zip(observed).map(lane).collect())
    }

    pub(super) fn max_logprob_entries(&self) -> usize {
        self.max_logprob_entries
    }

    /// The charge for the answers of the lanes' call, to be held until the answers have been sent.
    pub(super) fn answer_charge(lanes: &[Self]) -> Option<AnswerCharge> {
        lanes.first()?.answer.clone()
    }

    pub(super) fn with_charges(lanes: Vec<Self>, charges: Charges) -> Vec<Self> {
        let (prompt, request) = (Arc::new(charges.prompt), Arc::new(charges.request));
        let charged = |lane| Self {
            prompt_charge: Some(prompt.clone()),
            _request_charge: Some(request.clone()),
            ..lane
        };
        lanes.into_iter().map(charged).collect()
    }

    /// Gives each lane a limit, which counts from now on.
    pub(super) fn with_line_limit(lanes: Vec<Self>, limit: &LineLimit) -> Vec<Self> {
        if limit.is_none() {
            return lanes;
        }
        let opened = Instant::now();
        let limited = |lane| Self {
            line_end: Some(LineEnd::new(limit.clone(), opened)),
            ..lane
        };
        lanes.into_iter().map(limited).collect()
    }

    pub(super) fn canceller(&self) -> Canceller {
        self.generation.canceller()
    }

    async fn next(&mut self) -> Event {
        let lost = || {
            Event::Failed(RequestError::EngineDown(
                "it stopped before the request had ended: send the request again".to_owned(),
            ))
        };
        let event = self.generation.next().await;
        self.prompt_charge = None;
        let mut event = event.unwrap_or_else(lost);
        if let Some(line_end) = &mut self.line_end {
            event = line_end.apply(event, Instant::now());
        }
        self.observed.observe(&event);
        event
    }

    /// Collects events until the end. `kept` counts the log probabilities of all lanes of the call.
    async fn finish(mut self, kept: &Cell<usize>) -> Result<Transcript, RequestError> {
        let mut transcript = Transcript::default();
        while transcript.end.is_none() {
            let update = Update::of(self.next().await)?;
            kept.set(kept.get() + update.logprob_entries());
            check_logprobs(kept.get(), self.max_logprob_entries)?;
            transcript.push(update);
        }
        Ok(transcript)
    }

    /// The lane's events up to the terminal one, each with a copy of `key`.
    pub(super) fn events<K: Clone + 'static>(self, key: K) -> Events<K> {
        Box::pin(stream::unfold(Some(self), move |lane| {
            let key = key.clone();
            async move {
                let mut lane = lane?;
                let event = lane.next().await;
                let rest = (!event.is_terminal()).then_some(lane);
                Some(((key, event), rest))
            }
        }))
    }
}

pub(super) fn check_logprobs(kept: usize, limit: usize) -> Result<(), RequestError> {
    if kept <= limit {
        Ok(())
    } else {
        Err(RequestError::Invalid(format!(
            "the answer has {kept} log probabilities so far, limit is {limit}: \
         ask for fewer alternatives, tokens or prompts at once"
        )))
    }
}

pub(super) type Events<K> = Pin<Box<dyn Stream<Item = (K, Event)>>>;

/// The events of all lanes in order of arrival, each with the index of its lane.
pub(super) fn merged(lanes: Vec<Lane>) -> SelectAll<Events<usize>> {
    stream::select_all(
        lanes
            .into_iter()
            .enumerate()
            .map(|(index, lane)| lane.events(index)),
    )
}

/// Waits until all lanes have ended. The first failure cancels the others.
pub(super) async fn finish_all(lanes: Vec<Lane>) -> Result<Vec<Transcript>, ApiError> {
    let kept = Cell::new(0);
    let mut finished: Vec<Option<Transcript>> = lanes.iter().map(|_| None).collect();
    let mut running: stream::FuturesUnordered<_> = lanes
        .into_iter()
        .enumerate()
        .map(|(index, lane)| {
            let kept = &kept;
            async move { (index, lane.finish(kept).await) }
        })
        .collect();
    while let Some((index, transcript)) = running.next().await {
        finished[index] = Some(transcript?);
    }
    Ok(finished.into_iter().flatten().collect())
}
