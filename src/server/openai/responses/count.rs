//! `POST /v1/responses/input_tokens`: counts the tokens of a request's prompt.

use actix_web::HttpResponse;
use actix_web::rt::task::spawn_blocking;
use actix_web::web::Data;
use serde_json::json;

use super::call::Call;
use super::store::Owner;
use super::{parse_context, reworded};
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::images;
use crate::openai::answer::ReceivedCall;
use crate::state::AppState;
use souffleur_actors::pictures::{self, ImageReader, RenderedChat, for_template};
use souffleur_base::error::RequestError;
use souffleur_model::text::{KnownBeginning, TextModel};
use souffleur_request::ChatPrompt;

pub(crate) async fn input_tokens(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let received = ReceivedCall::new(&state, body)?;
    let engine = &received.loaded.engine;
    let context = engine.model().context_length;
    let tokenizer = engine.text().cloned();
    let parse_context = parse_context(&state, received.limits, Owner::Anyone)?;
    let (mut call, mut charges) = Call::parse(received.fields, &parse_context)?;
    let pending = images::take(&state, &mut call.prompt, &mut charges)?;
    pending
        .fetch(&state, &mut call.prompt, &mut charges)
        .await?;
    let reader = engine.images().cloned();
    let Some(tokenizer) = tokenizer else {
        let text = "the engine runs without a tokenizer, so it cannot count tokens: restart the server without \
                    --skip-tokenizer-init";
        return Err(ApiError::invalid(text));
    };
    // Few counts may run at once, since each occupies a thread for a time proportional to the prompt's length.
    let permit = state.counting().acquire().await;
    let counted = spawn_blocking(move || {
        let count = count(&tokenizer, reader.as_deref(), &call.prompt, context);
        drop(charges);
        count
    });
    let counted = counted.await;
    drop(permit);
    let failed = |_| ApiError::interrupted("counting the tokens failed: see the server's log");
    let tokens = counted.map_err(failed)?;
    let tokens = tokens.map_err(|error| reworded(error.into()))?;
    let answer = json!({"object": "response.input_tokens", "input_tokens": tokens});
    Ok(HttpResponse::Ok().json(answer))
}

fn count(
    tokenizer: &TextModel,
    reader: Option<&ImageReader>,
    prompt: &ChatPrompt,
    limit_tokens: usize,
) -> Result<usize, RequestError> {
    let rendered = match pictures::render(reader, tokenizer, prompt, limit_tokens)? {
        RenderedChat::Tokens(tokens) => return Ok(tokens.len()),
        RenderedChat::Text(text) => text,
    };
    if let Some(prompt_tokens) = tokenizer.count_chat_above(&rendered, limit_tokens)? {
        return Err(RequestError::PromptTooLong {
            prompt_tokens,
            limit_tokens,
        });
    }
    if let Some(known) = &prompt.known {
        let known = KnownBeginning {
            messages: known.messages,
            tokens: &known.tokens,
            has_answer: known.has_answer,
        };
        if let Some(tokens) = tokenizer.encode_after(known, &for_template(prompt), &rendered)? {
            return Ok(tokens.len());
        }
    }
    Ok(tokenizer.encode_chat(&rendered)?.len())
}
