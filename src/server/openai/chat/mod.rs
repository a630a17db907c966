//! `POST /v1/chat/completions`.

pub(in crate::server) mod call;
mod choice;
pub(in crate::server) mod docs;
pub(in crate::server) mod history;
mod messages;
pub(in crate::server) mod pieces;
pub(in crate::server) mod reasoning;
pub(in crate::server) mod tool_choice;
pub(in crate::server) mod tools;
mod writer;

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::answer::{self, Received};
use super::wire::Head;
use crate::server::body::JsonBody;
use crate::server::error::ApiError;
use crate::server::lanes::Lane;
use crate::server::state::AppState;
use call::Call;
pub(in crate::server) use docs::{components, operation};
use writer::Writer;

pub(in crate::server) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let received = Received::new(&state, body)?;
    let (call, charges) = Call::parse(received.fields, received.limits)?;
    let stream = call.common.stream;
    let object = if stream {
        "chat.completion.chunk"
    } else {
        "chat.completion"
    };
    let head = Head::new(&call.common.id, object, received.loaded);
    let spelling = received.loaded.spelling.clone();
    let writer = Writer::new(&call, head, spelling, state.config().reasoning_field);
    let lanes = Lane::open_all(&state, call.into_requests())?;
    answer::respond(&state, Lane::with_charges(lanes, charges), stream, writer).await
}

#[cfg(test)]
mod tests;
