//! Prompts that end inside their last message.
//!
//! A template writes a message whole, with its end. So the last message gets a mark at the end of its content, and the
//! prompt is cut there: the template may trim the content itself, or write it more than once.

use serde_json::Value;

use crate::refusal::invalid;
use souffleur_base::error::RequestError;

/// The mark. Its last character is a space: where that is missing, the template trims contents.
const MARK: &str = "<the final message goes on here> ";

/// Puts the mark after the content of the last message, and returns how many bytes of white space the content ends with.
pub(super) fn mark(messages: &mut [Value]) -> usize {
    let Some(content) = messages.last_mut().map(|message| &mut message["content"]) else {
        return 0;
    };
    let text = match content {
        Value::Array(parts) => parts.last_mut().map(|part| &mut part["text"]),
        content => Some(content),
    };
    let Some(Value::String(text)) = text else {
        return 0;
    };
    let blank_bytes = text.len() - text.trim_end().len();
    text.push_str(MARK);
    blank_bytes
}

/// Cuts the prompt at the mark. A template that trims contents would trim the `blank_bytes` at the end of this one too.
pub(super) fn cut(mut prompt: String, blank_bytes: usize) -> Result<String, RequestError> {
    let Some(end) = prompt.rfind(MARK.trim_end()) else {
        return invalid(
            "continue_final_message: the chat template does not render the last message verbatim, so it cannot be \
             continued: leave the field out"
                .to_owned(),
        );
    };
    let trims = !prompt[end..].starts_with(MARK);
    prompt.truncate(end);
    if trims {
        let least = prompt.ceil_char_boundary(end.saturating_sub(blank_bytes));
        prompt.truncate(prompt.trim_end().len().max(least));
    }
    Ok(prompt)
}
