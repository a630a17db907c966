//! The example call that `serve` suggests at its start, which the served model can answer.

use serde_json::json;
use souffleur::model::text::{ChatPrompt, TextModel};

/// Returns a path and a body: a chat where the model's template renders one, a text to continue where it has none, and
/// token ids without a tokenizer.
pub fn first_call(text: Option<&TextModel>) -> (&'static str, &'static str) {
    match text {
        Some(text) if chats(text) => (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "Who are you?"}], "stream": true}"#,
        ),
        Some(_) => (
            "/v1/completions",
            r#"{"prompt": "Once upon a time", "max_tokens": 64, "stream": true}"#,
        ),
        None => (
            "/generate",
            r#"{"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 64}, "stream": true}"#,
        ),
    }
}

/// A template that does not compile, or refuses a single question, counts as none.
fn chats(text: &TextModel) -> bool {
    let messages = json!([{"role": "user", "content": "Who are you?"}]);
    text.has_chat_template() && text.render_chat(&ChatPrompt::new(&messages)).is_ok()
}
