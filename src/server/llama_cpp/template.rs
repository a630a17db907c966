//! `POST /apply-template`: the prompt of a chat as a text, as llama.cpp has it.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::path::Operation;

use crate::body::JsonBody;
use crate::encode::{self, with_tokenizer};
use crate::error::ApiError;
use crate::images;
use crate::openai::answer::ReceivedCall;
use crate::openai::chat::call::Call;
use crate::openai::chat::docs::fields;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{object, text};
use crate::state::AppState;
use crate::whole;
use souffleur_model::text::TextModel;

#[derive(Serialize)]
struct Answer {
    prompt: String,
}

/// Answers with the text that `/v1/chat/completions` encodes for the same body, and the name of the model's placeholder
/// for each image (llama.cpp answers with its marker of media). It may be longer than the context.
pub(crate) async fn apply(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let received = ReceivedCall::new(&state, body)?;
    let engine = &received.loaded.engine;
    let (mut call, mut charges) = Call::parse(received.fields, received.limits)?;
    // The images are neither fetched nor read.
    drop(images::take(&state, &mut call.prompt, &mut charges)?);
    let sampling = &call.common.sampling;
    sampling.validate(engine.model().vocab_size, engine.request_limits())?;
    let (chat, reader) = (call.prompt, engine.images().cloned());
    let work = move |tokenizer: &TextModel, _| {
        let prompt = match reader.filter(|_| !chat.images.is_empty()) {
            Some(reader) => reader.render(tokenizer, &chat)?,
            None => encode::render(tokenizer, &chat)?,
        };
        let json = serde_json::to_vec(&Answer { prompt });
        Ok(json.expect("answers have string keys only"))
    };
    let json = with_tokenizer(&state, charges, work).await?;
    let charge = state.answers().charge_bytes(json.len())?;
    Ok(whole::json(json, charge))
}

pub(crate) fn operation(facts: &Facts) -> Operation {
    let example = json!({"messages": [{"role": "user", "content": "Who are you?"}]});
    let answer = object().has("prompt", text());
    describe(Group::LlamaCpp, "The prompt of a chat")
        .about("Takes the body of a chat completion, and generates nothing.")
        .takes(fields(facts).shape(), example)
        .answers(
            answer.shape(),
            "the text that the chat completion would encode",
        )
        .needs_engine("overloaded, or without an engine")
        .done()
}
