//! Ends a prompt inside its last message, as `continue_final_message` asks.
//!
//! A template writes an end-of-turn token after a message. So a mark is appended to the last message's content, and the
//! prompt is cut at the mark. The content itself cannot be searched: the template may trim it or write it twice.

use serde_json::Value;

use souffleur_base::error::RequestError;

/// A template that trims contents drops the trailing space, which `cut` detects.
const MARK: &str = "<the final message goes on here> ";

/// Appends the mark to the last message's content. Returns the length of the white space that the content ended with.
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

/// Cuts the prompt at the mark, and trims the `blank_bytes` before it if the template trims contents.
pub(super) fn cut(mut prompt: String, blank_bytes: usize) -> Result<String, RequestError> {
    let Some(end) = prompt.rfind(MARK.trim_end()) else {
        return Err(RequestError::NotContinued);
    };
    let trims = !prompt[end..].starts_with(MARK);
    prompt.truncate(end);
    if trims {
        let min = prompt.ceil_char_boundary(end.saturating_sub(blank_bytes));
        prompt.truncate(prompt.trim_end().len().max(min));
    }
    Ok(prompt)
}
