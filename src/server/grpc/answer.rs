//! Runs one gRPC request in the engine, for the runtime service and the scheduler service.

use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::{self, Stream};
use serde_json::{Map, Value};
use tonic::Status;

use super::call::{self, MessageLimits};
use super::status;
use crate::budget::{BodyCharge, Charges};
use crate::error::ApiError;
use crate::native::NativeCall;
use crate::open_requests::ListGuard;
use crate::state::AppState;
use crate::transcript::{Transcript, Update};
use souffleur_base::ids::RequestId;
use souffleur_engine::Generation;

pub(super) type Responses<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// One request in flight. Dropping it before the end, for example when the client disconnects, cancels the request.
pub(super) struct Answer {
    generation: Generation,
    rid: RequestId,
    unsent: Transcript,
    is_streaming: bool,
    /// The charge for the prompt, held until the first event. From then on the engine holds the prompt.
    prompt_charge: Option<BodyCharge>,
    _request_charge: BodyCharge,
    _listed: ListGuard,
}

impl Answer {
    /// Sends a request to the engine. `body` converts the gRPC message to the body of a `/generate` call.
    pub(super) fn begin(
        state: &AppState,
        body: impl FnOnce(MessageLimits<'_>) -> Result<Map<String, Value>, ApiError>,
    ) -> Result<Self, ApiError> {
        let body = body(MessageLimits::of(state)?)?;
        Self::of_call(state, call::read(state, body)?)
    }

    fn of_call(state: &AppState, call: NativeCall) -> Result<Self, ApiError> {
        let is_streaming = call.stream;
        let (mut requests, charges) = if is_streaming {
            call.into_streamed()
        } else {
            (call.requests, call.charges)
        };
        let Charges { prompt, request } = charges;
        let only = requests.pop();
        let only = only.ok_or_else(|| ApiError::field("n", "n is 0, must be 1"))?;
        let rid = only.rid.clone();
        let generation = state.serving()?.engine.generate(only)?;
        Ok(Self {
            _listed: state.open_requests().list(generation.canceller()),
            prompt_charge: Some(prompt),
            _request_charge: request,
            generation,
            rid,
            unsent: Transcript::default(),
            is_streaming,
        })
    }

    /// Streams the responses that `make` builds from each part of the answer, up to the end or an error.
    pub(super) fn responses<R, F>(self, make: F) -> Responses<R>
    where
        R: Send + 'static,
        F: FnMut(&RequestId, Transcript) -> Vec<R> + Send + 'static,
    {
        let parts = stream::unfold(Some((self, make)), |state| async move {
            let (mut answer, mut make) = state?;
            let update = match answer.next().await {
                Ok(update) => update,
                Err(error) => return Some((vec![Err(error)], None)),
            };
            let has_ended = update.end.is_some();
            let responses = make(&answer.rid, update).into_iter().map(Ok).collect();
            Some((responses, (!has_ended).then_some((answer, make))))
        });
        Box::pin(parts.flat_map(stream::iter))
    }

    /// Returns the output since the last call. If the request does not stream, waits for its end and returns all.
    async fn next(&mut self) -> Result<Transcript, Status> {
        loop {
            let lost = || {
                Status::unavailable(
                    "the engine stopped before the request had ended: send the request again",
                )
            };
            let event = self.generation.next().await.ok_or_else(lost)?;
            self.prompt_charge = None;
            let update = Update::of(event).map_err(|error| status(error.into()))?;
            let is_due = self.is_streaming && !update.is_prompt_only();
            self.unsent.push(update);
            if is_due || self.unsent.end.is_some() {
                return Ok(std::mem::take(&mut self.unsent));
            }
        }
    }
}
