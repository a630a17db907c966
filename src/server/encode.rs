//! Encodes texts into tokens for requests that generate nothing.
//!
//! These requests take no admission permit and do not use the Tokenizer actor. One text is encoded at a time, on a
//! thread for blocking work. The other requests wait, and the memory of their bodies is bounded.

use std::sync::Arc;

use actix_web::rt::task::spawn_blocking;

use super::budget::Charges;
use super::error::ApiError;
use super::state::AppState;
use souffleur_actors::pictures::{self, ImageReader, RenderedChat, for_template};
use souffleur_base::error::RequestError;
use souffleur_engine::EngineHandle;
use souffleur_model::text::TextModel;
use souffleur_request::ChatPrompt;

/// Fails if the engine runs without a tokenizer.
pub(super) fn tokenizer(engine: &EngineHandle) -> Result<Arc<TextModel>, ApiError> {
    let tokenizer = engine.text().cloned();
    tokenizer.ok_or_else(|| {
        ApiError::invalid(
            "the engine runs without a tokenizer: restart the server without --skip-tokenizer-init",
        )
    })
}

/// Waits for the encode gate, then runs `work` with the tokenizer and the context length. `charges` are held until
/// `work` has ended, even if the caller is dropped.
///
/// # Errors
/// The errors of `work`; an error if there is no engine or no tokenizer.
pub(super) async fn with_tokenizer<T: Send + 'static>(
    state: &AppState,
    charges: Charges,
    work: impl FnOnce(&TextModel, usize) -> Result<T, RequestError> + Send + 'static,
) -> Result<T, ApiError> {
    let lost =
        || ApiError::interrupted("the server is shutting down: send the request again later");
    let engine = &state.serving()?.engine;
    let (tokenizer, limit_tokens) = (tokenizer(engine)?, engine.model().context_length);
    let turn = state.encode_gate().turn().await.ok_or_else(lost)?;
    let work = spawn_blocking(move || {
        let done = work(&tokenizer, limit_tokens);
        drop((turn, charges));
        done
    });
    let failed = |_| ApiError::interrupted("tokenizing the text failed: see the server's log");
    Ok(work.await.map_err(failed)??)
}

/// Encodes a text. The caller has charged its memory. A text that `continues` a prompt gets no leading special tokens.
pub(super) async fn text(
    state: &AppState,
    prompt: Arc<str>,
    continues: bool,
) -> Result<Vec<u32>, ApiError> {
    let no_charges = Charges {
        prompt: state.bodies().open(),
        request: state.bodies().open(),
    };
    with_tokenizer(state, no_charges, move |tokenizer, limit_tokens| {
        encode(tokenizer, &prompt, !continues, limit_tokens)
    })
    .await
}

/// Renders and encodes a conversation. Fails if the prompt is longer than the model's context.
pub(super) async fn chat(
    state: &AppState,
    prompt: ChatPrompt,
    charges: Charges,
) -> Result<Vec<u32>, ApiError> {
    let reader = state.serving()?.engine.images().cloned();
    with_tokenizer(state, charges, move |tokenizer, limit_tokens| {
        chat_tokens(tokenizer, reader.as_deref(), &prompt, limit_tokens)
    })
    .await
}

/// The tokens of a conversation's prompt, with pad tokens at the positions of images. Of images only the headers are
/// read.
fn chat_tokens(
    tokenizer: &TextModel,
    reader: Option<&ImageReader>,
    prompt: &ChatPrompt,
    limit_tokens: usize,
) -> Result<Vec<u32>, RequestError> {
    match pictures::render(reader, tokenizer, prompt, limit_tokens)? {
        RenderedChat::Tokens(tokens) => Ok(tokens),
        RenderedChat::Text(rendered) => encode(tokenizer, &rendered, false, limit_tokens),
    }
}

pub(super) fn render(tokenizer: &TextModel, prompt: &ChatPrompt) -> Result<String, RequestError> {
    tokenizer.render_chat(&for_template(prompt))
}

/// Encodes a text. If it `is_whole`, the special tokens around a prompt are added.
///
/// # Errors
/// The errors of encoding; an error if the text has more than `limit_tokens`. The length is checked before the whole
/// text is encoded, because encoding takes about a hundred times the text's memory.
pub(super) fn encode(
    tokenizer: &TextModel,
    prompt: &str,
    is_whole: bool,
    limit_tokens: usize,
) -> Result<Vec<u32>, RequestError> {
    check_length(tokenizer, prompt, is_whole, limit_tokens)?;
    if is_whole {
        tokenizer.encode(prompt)
    } else {
        tokenizer.encode_chat(prompt)
    }
}

/// As [`encode`], with the names of special tokens as ordinary letters. The length is checked with them as tokens.
pub(super) fn encode_letters(
    tokenizer: &TextModel,
    text: &str,
    is_whole: bool,
    limit_tokens: usize,
) -> Result<Vec<u32>, RequestError> {
    check_length(tokenizer, text, is_whole, limit_tokens)?;
    tokenizer.encode_letters(text, is_whole)
}

fn check_length(
    tokenizer: &TextModel,
    prompt: &str,
    is_whole: bool,
    limit_tokens: usize,
) -> Result<(), RequestError> {
    let too_long = if is_whole {
        tokenizer.count_prompt_above(prompt, limit_tokens)?
    } else {
        tokenizer.count_chat_above(prompt, limit_tokens)?
    };
    match too_long {
        Some(prompt_tokens) => Err(RequestError::PromptTooLong {
            prompt_tokens,
            limit_tokens,
        }),
        None => Ok(()),
    }
}
