//! The field `suffix` of plain prompts: the output is the text between the prompt and the suffix.
//!
//! As in Ollama, such a prompt is not put into the chat template, and `system` has no effect on it.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::llama_cpp;
use crate::state::Loaded;
use souffleur_request::{InfillPrompt, Prompt};

const NAME: &str = "suffix";

/// Returns the text after the gap. An empty suffix has no effect.
///
/// # Errors
/// 400, with Ollama's words, for a model that cannot fill in the middle.
pub(super) fn read(
    fields: &mut Fields,
    model: &str,
    loaded: &Loaded,
) -> Result<Option<String>, ApiError> {
    let suffix = fields.string(NAME)?.filter(|suffix| !suffix.is_empty());
    if suffix.is_some()
        && let Some(reason) = llama_cpp::no_infill(loaded)
    {
        let text = format!("{model:?} does not support insert: {reason}");
        return Err(ApiError::field(NAME, text));
    }
    Ok(suffix)
}

/// Ollama ignores the suffix of a raw prompt.
pub(super) fn of_raw_prompt() -> ApiError {
    let text = "suffix cannot be used with raw: write the tokens of prefix, suffix and middle into prompt, or leave \
                raw out";
    ApiError::field(NAME, text)
}

pub(super) fn around(prefix: String, suffix: String) -> Prompt {
    Prompt::from(InfillPrompt {
        prefix: prefix.into(),
        suffix: suffix.into(),
        ..InfillPrompt::default()
    })
}
