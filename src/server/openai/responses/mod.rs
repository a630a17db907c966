//! OpenAI's responses: a conversation whose input, answer and tools are items, and which the server keeps, so that the
//! next request continues it by its id.

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
pub(in crate::server) mod store;
mod stored;
mod tools;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::answer::{self, Received};
use crate::server::body::JsonBody;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::lanes::Lane;
use crate::server::state::AppState;
use crate::server::words::Dialect;
use call::{Asking, Call};
use input::Shelf;

pub(in crate::server) use count::input_tokens;
pub(in crate::server) use docs::{
    cancel_operation, components, count_operation, delete_operation, items_operation, operation,
    read_operation,
};
pub(in crate::server) use events::WrittenEvent;
pub(in crate::server) use ids::ResponseId;
pub(in crate::server) use store::{ConnectionId, Owner};
pub(in crate::server) use stored::{cancel, delete, input_items, retrieve};
pub(in crate::server) use writer::Writer;

pub(in crate::server) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let begun = begin(&state, body.0, Owner::Anyone, None)?;
    let answer = answer::respond(&state, vec![begun.lane], begun.stream, begun.writer);
    answer.await.map_err(in_our_words)
}

pub(in crate::server) struct Begun {
    pub(in crate::server) lane: Lane,
    pub(in crate::server) writer: Writer,
    stream: bool,
}

pub(in crate::server) fn begin(
    state: &Arc<AppState>,
    fields: Fields,
    owner: Owner,
    lane_name: Option<Arc<str>>,
) -> Result<Begun, ApiError> {
    let received = Received::new(state, JsonBody(fields))?;
    let loaded = received.loaded;
    let (call, charges) = Call::parse(received.fields, &asking(state, received.limits, owner)?)?;
    let stream = call.common.stream;
    let (request, writer) = call.into_parts(loaded.spelling.clone(), lane_name);
    let lanes = Lane::open_all(state, vec![request])?;
    let mut lanes = Lane::with_charges(lanes, charges);
    Ok(Begun {
        lane: lanes.pop().expect("one request has one lane"),
        writer,
        stream,
    })
}

fn asking<'a>(
    state: &'a AppState,
    limits: crate::server::call::CallLimits<'a>,
    owner: Owner,
) -> Result<Asking<'a>, ApiError> {
    let shelf = Shelf {
        store: state.responses(),
        owner,
    };
    Ok(Asking {
        shelf,
        limits,
        engine: &state.loaded()?.engine,
        pin_ttl: Duration::from_secs(state.config().responses_pin_ttl_s.into()),
    })
}

/// An error of the engine with the names that fields have here, in the words that clients look for.
pub(in crate::server) fn in_our_words(error: ApiError) -> ApiError {
    error
        .renamed("response_format", "text.format")
        .in_words_of(Dialect::Responses)
}
