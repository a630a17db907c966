//! Encodes prompts that ask for the text between two others.

use souffleur_base::error::RequestError;
use souffleur_model::text::{self, TextModel};
use souffleur_request::InfillPrompt;

use super::TokenizerSettings;
use super::prepare::refuse_too_long;

/// Encodes a prompt. One that is too long is cut, or refused without encoding a text that is too long alone.
pub(super) fn encode(
    tokenizer: &TextModel,
    prompt: &InfillPrompt,
    settings: &TokenizerSettings,
) -> Result<Vec<u32>, RequestError> {
    let limit = settings.limits.max_prompt_tokens();
    if !prompt.may_be_cut {
        for part in texts(prompt) {
            refuse_too_long(tokenizer.count_chat_above(part, limit)?, settings)?;
        }
    }
    let files = prompt.files.as_ref().map(|files| {
        let files = files.iter().map(|file| text::InfillFile {
            name: &file.name,
            text: &file.text,
        });
        files.collect()
    });
    tokenizer.encode_infill(&text::InfillPrompt {
        prefix: &prompt.prefix,
        suffix: &prompt.suffix,
        line_start: &prompt.line_start,
        files,
        cut_to: prompt.may_be_cut.then_some(limit),
    })
}

fn texts(prompt: &InfillPrompt) -> impl Iterator<Item = &str> {
    let files = prompt.files.as_deref().unwrap_or_default().iter();
    let files = files.flat_map(|file| [&*file.name, &*file.text]);
    let around = [&*prompt.prefix, &*prompt.line_start, &*prompt.suffix];
    around.into_iter().chain(files)
}
