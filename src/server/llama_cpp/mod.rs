//! llama.cpp's API for editors: `POST /infill` fills in the middle, `GET /props` shows the server's properties, and
//! `POST /apply-template` the prompt of a chat.

mod answer;
mod call;
pub(super) mod content;
mod docs;
pub(super) mod infill;
pub(super) mod props;
mod settings;
pub(super) mod template;

use super::error::ApiError;
use super::state::Loaded;
pub(super) use call::read_chat_fields;
pub(super) use docs::{chat_fields, components};
use souffleur_model::text::NO_INFILL_TOKENS;

const NO_TOKENIZER: &str =
    "the engine runs without a tokenizer: restart the server without --skip-tokenizer-init";

/// Fails if the model cannot fill in the middle. The error names the field that asks for it.
pub(super) fn check_model(loaded: &Loaded, field: &str) -> Result<(), ApiError> {
    match no_infill(loaded) {
        None => Ok(()),
        Some(reason) => Err(ApiError::field(
            field,
            format!("{field} cannot be used: {reason}"),
        )),
    }
}

/// The reason why the model cannot fill in the middle, with a remedy; `None` if it can.
pub(super) fn no_infill(loaded: &Loaded) -> Option<&'static str> {
    match loaded.engine.text() {
        Some(text) if text.can_infill() => None,
        Some(_) => Some(NO_INFILL_TOKENS),
        None => Some(NO_TOKENIZER),
    }
}
