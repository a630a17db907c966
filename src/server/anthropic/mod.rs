//! Anthropic's Messages API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! A call is converted to a chat completion and runs as one; only the formats of the request and of the answer are
//! different.

mod answer;
mod blocks;
mod call;
mod docs;
mod errors;
mod messages;
mod stream;
mod system;
mod texts;
mod thinking;
mod tools;
mod wire;

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::{Data, ReqData};
use serde_json::json;

use super::body::JsonBody;
use super::encode;
use super::error::ApiError;
use super::foreign;
use super::images;
use super::lanes::{Lane, finish_all};
use super::openai::answer::ReceivedCall;
use super::state::{AppState, Loaded};
use super::{sse, whole};
use answer::write_message;
use call::{MessagesCall, ParseOptions, PromptFields};
pub(super) use docs::{components, count_operation, operation};
use errors::HttpId;
pub(super) use errors::adapt;
use stream::MessageStream;
use wire::Head;

pub(super) async fn create(
    state: Data<AppState>,
    id: ReqData<HttpId>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let received = ReceivedCall::new(&state, body)?;
    let options = parse_options(&state, received.loaded);
    let parsed = MessagesCall::parse(received.fields, received.limits, options)?;
    let (mut call, mut charges) = parsed;
    let pending = images::take(&state, &mut call.chat.prompt, &mut charges)?;
    let prompt = &mut call.chat.prompt;
    pending.fetch(&state, prompt, &mut charges).await?;
    let head = Head {
        rid: call.chat.common.id.clone(),
        model: received.loaded.engine.model().served_model_name.clone(),
        shows_thinking: call.shows_thinking,
    };
    let is_stream = call.chat.common.stream;
    let lanes = Lane::open_all(&state, call.chat.into_requests())?;
    let lanes = Lane::with_charges(lanes, charges);
    if is_stream {
        let render = MessageStream::new(head, id.into_inner());
        return sse::respond(lanes, render, state.config().sse_keep_alive_s).await;
    }
    let charge = Lane::answer_charge(&lanes);
    let transcripts = finish_all(lanes).await?;
    let write = move |transcripts| write_message(&head, transcripts);
    Ok(whole::respond(transcripts, charge, write).await)
}

pub(super) async fn count_tokens(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let loaded = state.serving()?;
    let mut fields = body.0;
    let prompt_fields = PromptFields::read(&mut fields, parse_options(&state, loaded))?;
    foreign::refuse(&mut fields, &[])?;
    let mut prompt = prompt_fields.into_counted_prompt();
    let mut charges = fields.into_charges();
    let pending = images::take(&state, &mut prompt, &mut charges)?;
    pending.fetch(&state, &mut prompt, &mut charges).await?;
    let tokens = encode::chat(&state, prompt, charges).await?;
    Ok(HttpResponse::Ok().json(json!({ "input_tokens": tokens.len() })))
}

fn parse_options<'a>(state: &AppState, loaded: &'a Loaded) -> ParseOptions<'a> {
    ParseOptions {
        tokenizer: loaded.engine.text().map(Arc::as_ref),
        drops_headers: state.config().drop_changing_headers,
    }
}
