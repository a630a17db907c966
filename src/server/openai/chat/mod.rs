//! `POST /v1/chat/completions`: OpenAI's chat completions.

pub(crate) mod call;
mod choice;
pub(crate) mod docs;
pub(crate) mod history;
pub(crate) mod messages;
pub(crate) mod pieces;
mod prediction;
pub(crate) mod reasoning;
pub(crate) mod tool_choice;
pub(crate) mod tools;
mod writer;

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::answer::{self, ReceivedCall};
use super::wire::Head;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::images;
use crate::lanes::Lane;
use crate::state::AppState;
use call::Call;
pub(crate) use docs::{components, operation};
use writer::Writer;

pub(crate) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let received = ReceivedCall::new(&state, body)?;
    let (mut call, mut charges) = Call::parse(received.fields, received.limits)?;
    let pending = images::take(&state, &mut call.prompt, &mut charges)?;
    pending
        .fetch(&state, &mut call.prompt, &mut charges)
        .await?;
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
