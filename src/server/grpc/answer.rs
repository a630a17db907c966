//! One request of gRPC in the engine, whichever service it came by.

use tonic::Status;

use super::status;
use crate::engine::Generation;
use crate::ids::RequestId;
use crate::server::budget::{BodyCharge, Charges};
use crate::server::error::ApiError;
use crate::server::native::NativeCall;
use crate::server::open_requests::Listed;
use crate::server::state::AppState;
use crate::server::transcript::{News, Transcript};

/// One request under way. Dropped before its end, when its client leaves, it is cancelled.
pub(super) struct Answer {
    generation: Generation,
    rid: RequestId,
    /// What has come and was not told.
    untold: Transcript,
    streams: bool,
    /// The memory of the prompt, until the first event: by then the engine has it.
    prompt_charge: Option<BodyCharge>,
    _request_charge: BodyCharge,
    _listed: Listed,
}

impl Answer {
    /// Sends the one request of a call to the engine.
    pub(super) fn begin(state: &AppState, call: NativeCall) -> Result<Self, ApiError> {
        let streams = call.stream;
        let (mut requests, charges) = match streams {
            true => call.into_streamed(),
            false => (call.requests, call.charges),
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
            untold: Transcript::default(),
            streams,
        })
    }

    pub(super) fn rid(&self) -> &RequestId {
        &self.rid
    }

    /// What has come since the last time, all at once for a request that does not stream. With an end it is the last.
    pub(super) async fn next(&mut self) -> Result<Transcript, Status> {
        loop {
            let lost = || Status::unavailable("the request was lost");
            let event = self.generation.next().await.ok_or_else(lost)?;
            self.prompt_charge = None;
            let news = News::of(event).map_err(|error| status(error.into()))?;
            let is_told = self.streams && !news.is_of_the_prompt();
            self.untold.push(news);
            if is_told || self.untold.end.is_some() {
                return Ok(std::mem::take(&mut self.untold));
            }
        }
    }
}
