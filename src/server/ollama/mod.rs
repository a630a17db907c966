//! Ollama's API: discovery of the model, chats, plain prompts and embeddings.
//!
//! A call is converted to a request of the same kind as a chat completion; only the formats of the request and of the
//! answer are different. The server never unloads its only model, so `keep_alive` and `num_ctx` change nothing.

mod call;
pub(super) mod docs;
mod embed;
mod errors;
mod keep_alive;
mod messages;
mod models;
mod names;
mod options;
mod parts;
mod suffix;
mod target;
#[cfg(test)]
mod tests;
mod thinking;
mod tools;
mod wire;
mod writer;

use std::sync::Arc;
use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::body::JsonBody;
use super::error::ApiError;
use super::images;
use super::lanes::{Lane, finish_all};
use super::state::AppState;
use super::{sse, whole};
use call::{Call, Generation, Wish};
pub(super) use docs::components;
pub(super) use embed::{embed, embeddings};
pub(super) use errors::{adapt, adapt_unknown};
pub(super) use models::{ps, show, tags, version};
use souffleur_request::Prompt;
use target::Target;
use wire::{Head, Kind};
use writer::Writer;

pub(super) async fn chat(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let began = Instant::now();
    let call = call::chat(body.0, &Target::of(&state)?)?;
    answer(&state, call, Kind::Chat, began).await
}

/// Takes the images out of the messages of a chat.
async fn take_images(state: &AppState, generation: &mut Generation) -> Result<(), ApiError> {
    let Prompt::Chat(chat) = &mut generation.request.prompt else {
        return Ok(());
    };
    let (chat, charges) = (Arc::make_mut(chat), &mut generation.charges);
    let pending = images::take(state, chat, charges)?;
    pending.fetch(state, chat, charges).await
}

pub(super) async fn generate(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let began = Instant::now();
    let call = call::generate(body.0, &Target::of(&state)?)?;
    answer(&state, call, Kind::Generate, began).await
}

async fn answer(
    state: &Data<AppState>,
    call: Call,
    kind: Kind,
    began: Instant,
) -> Result<HttpResponse, ApiError> {
    let head = Head {
        model: call.model,
        kind,
        began,
    };
    let mut generation = match call.wish {
        Wish::Nothing { unloads } => {
            return Ok(HttpResponse::Ok().json(head.of_empty_call(unloads)));
        }
        Wish::Answer(generation) => generation,
    };
    take_images(state, &mut generation).await?;
    let Generation {
        request,
        has_logprobs,
        charges,
    } = *generation;
    let spelling = &state.serving()?.spelling;
    let spelling = has_logprobs.then(|| spelling.clone());
    let writer = Writer::new(head, request.rid.clone(), spelling);
    let is_stream = request.is_streaming;
    let lanes = Lane::with_charges(Lane::open_all(state, vec![request])?, charges);
    if is_stream {
        return sse::respond(lanes, writer, state.config().sse_keep_alive_s).await;
    }
    let charge = Lane::answer_charge(&lanes);
    let transcripts = finish_all(lanes).await?;
    writer::check_ends(&transcripts)?;
    let write = move |transcripts| writer.whole(transcripts);
    Ok(whole::respond(transcripts, charge, write).await)
}
