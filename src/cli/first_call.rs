//! Chooses an example request that the served model can answer, for `serve` to print at its start.

use serde_json::json;
use souffleur::model::text::{ChatPrompt, TextModel};

/// Returns a path and a body: a chat if the model has a working chat template, else a text to continue, or token ids if
/// there is no tokenizer.
pub fn first_call(text: Option<&TextModel>) -> (&'static str, &'static str) {
    match text {
        Some(text) if can_chat(text) => (
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

/// True if the model has a chat template that compiles and renders a single question.
fn can_chat(text: &TextModel) -> bool {
    let messages = json!([{"role": "user", "content": "Who are you?"}]);
    text.has_chat_template() && text.render_chat(&ChatPrompt::new(&messages)).is_ok()
}
