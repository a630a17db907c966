//! llama.cpp's API for editors: `POST /infill` fills in the middle, and `GET /props` shows the server's properties.

mod answer;
mod call;
mod docs;
pub(super) mod infill;
pub(super) mod props;
mod settings;

use super::error::ApiError;
use super::state::Loaded;
pub(super) use call::read_chat_fields;
pub(super) use docs::{chat_fields, components};
use souffleur_model::text::NO_INFILL_TOKENS;

/// Fails if the model cannot fill in the middle. The error names the field that asks for it.
pub(super) fn check_model(loaded: &Loaded, field: &str) -> Result<(), ApiError> {
    match loaded.engine.text() {
        Some(text) if text.can_infill() => Ok(()),
        Some(_) => Err(ApiError::field(
            field,
            format!("{field} cannot be used: {NO_INFILL_TOKENS}"),
        )),
        None => {
            let text = "the engine runs without a tokenizer: restart the server without --skip-tokenizer-init";
            Err(ApiError::field(
                field,
                format!("{field} cannot be used: {text}"),
            ))
        }
    }
}
