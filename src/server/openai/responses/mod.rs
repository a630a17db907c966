//! OpenAI's Responses API: a conversation consists of items, and the server stores each response, so that a later
//! request can continue it by its id.

mod call;
mod count;
mod docs;
mod events;
mod ids;
mod input;
mod items;
mod messages;
mod output;
mod pinning;
mod reasoning;
mod replay;
mod settings;
pub(crate) mod store;
mod stored;
mod tools;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::answer::{self, ReceivedCall};
use crate::body::JsonBody;
use crate::budget::Charges;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::images::{self, Pending};
use crate::lanes::Lane;
use crate::state::AppState;
use crate::words::Dialect;
use call::{Call, ParseContext};
use input::StoreView;

pub(crate) use count::input_tokens;
pub(crate) use docs::{
    cancel_operation, components, count_operation, delete_operation, items_operation, operation,
    read_operation,
};
pub(crate) use events::WrittenEvent;
pub(crate) use ids::ResponseId;
pub(crate) use store::{ConnectionId, Owner};
pub(crate) use stored::{cancel, delete, input_items, retrieve};
pub(crate) use writer::Writer;

pub(crate) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let (mut call, mut charges, pending) = parse(&state, body.0, Owner::Anyone)?;
    pending
        .fetch(&state, &mut call.prompt, &mut charges)
        .await?;
    let started = start(&state, call, charges, None)?;
    let answer = answer::respond(&state, vec![started.lane], started.stream, started.writer);
    answer.await.map_err(reworded)
}

pub(crate) struct StartedResponse {
    pub(crate) lane: Lane,
    pub(crate) writer: Writer,
    stream: bool,
}

/// A request that has been read. Some of its images may still have to be fetched.
pub(crate) struct Begun {
    state: Arc<AppState>,
    call: Call,
    charges: Charges,
    pending: Pending,
    lane_name: Option<Arc<str>>,
}

/// Reads a request.
pub(crate) fn begin(
    state: &Arc<AppState>,
    fields: Fields,
    owner: Owner,
    lane_name: Option<Arc<str>>,
) -> Result<Begun, ApiError> {
    let (call, charges, pending) = parse(state, fields, owner)?;
    Ok(Begun {
        state: state.clone(),
        call,
        charges,
        pending,
        lane_name,
    })
}

impl Begun {
    pub(crate) fn has_all_images(&self) -> bool {
        self.pending.is_empty()
    }

    /// Starts the response of a request that has all images.
    pub(crate) fn start(self) -> Result<StartedResponse, ApiError> {
        start(&self.state, self.call, self.charges, self.lane_name)
    }

    /// Fetches the images, and starts the response.
    pub(crate) async fn fetch(mut self) -> Result<StartedResponse, ApiError> {
        let pending = std::mem::take(&mut self.pending);
        let (prompt, charges) = (&mut self.call.prompt, &mut self.charges);
        pending.fetch(&self.state, prompt, charges).await?;
        self.start()
    }
}

fn parse(
    state: &AppState,
    fields: Fields,
    owner: Owner,
) -> Result<(Call, Charges, Pending), ApiError> {
    let received = ReceivedCall::new(state, JsonBody(fields))?;
    let parse_context = parse_context(state, received.limits, owner)?;
    let (mut call, mut charges) = Call::parse(received.fields, &parse_context)?;
    let pending = images::take(state, &mut call.prompt, &mut charges)?;
    Ok((call, charges, pending))
}

fn start(
    state: &Arc<AppState>,
    call: Call,
    charges: Charges,
    lane_name: Option<Arc<str>>,
) -> Result<StartedResponse, ApiError> {
    let loaded = state.serving()?;
    let stream = call.common.stream;
    let (request, writer) = call.into_parts(loaded.spelling.clone(), lane_name);
    let lanes = Lane::open_all(state, vec![request])?;
    let mut lanes = Lane::with_charges(lanes, charges);
    Ok(StartedResponse {
        lane: lanes.pop().expect("one request has one lane"),
        writer,
        stream,
    })
}

fn parse_context<'a>(
    state: &'a AppState,
    limits: crate::call::CallLimits<'a>,
    owner: Owner,
) -> Result<ParseContext<'a>, ApiError> {
    let view = StoreView {
        store: state.responses(),
        owner,
    };
    Ok(ParseContext {
        view,
        limits,
        engine: &state.loaded()?.engine,
        pin_ttl: Duration::from_secs(state.config().responses_pin_ttl_s.into()),
    })
}

/// Rewrites an error with this API's field names, and with the message that the API's clients look for.
pub(crate) fn reworded(error: ApiError) -> ApiError {
    error
        .renamed("response_format", "text.format")
        .in_dialect(Dialect::Responses)
}
