//! Why two readings differ.

use souffleur::state::output::{OutputFormats, ToolFormat};

use super::Reading;

/// Returns the reason for a difference, if it is one of those that are meant.
pub fn find(
    formats: OutputFormats,
    text: &str,
    ours: &Reading,
    theirs: &Reading,
) -> Option<&'static str> {
    let calls_equal = ours.calls == theirs.calls;
    let content_equal = ours.content.trim() == theirs.content.trim();
    let reasoning_equal = ours.reasoning.trim() == theirs.reasoning.trim();
    if calls_equal && content_equal && reasoning_equal {
        return Some("whitespace next to calls and reasoning is kept");
    }
    if calls_equal && reasoning_equal && ours.content.trim().starts_with(theirs.content.trim()) {
        return Some("content after the first call is dropped");
    }
    match formats.tool {
        Some(ToolFormat::Hermes) => hermes(text, ours, theirs),
        Some(ToolFormat::Llama3) => llama3(text, ours),
        Some(ToolFormat::Pythonic) => pythonic(text, ours),
        Some(ToolFormat::Mistral) => mistral(text, ours),
        Some(ToolFormat::Qwen3Coder) => None,
        None => reasoning(text),
    }
}

fn hermes(text: &str, ours: &Reading, theirs: &Reading) -> Option<&'static str> {
    let is_tight = |part: &str| !part.starts_with('\n') || !part.contains("\n</tool_call>");
    if text.split("<tool_call>").skip(1).any(is_tight) {
        return Some("a call needs newlines inside of its tags, and strings may hold no tags");
    }
    let is_string = |(_, arguments): &(String, serde_json::Value)| arguments.is_string();
    let n_quoted = theirs.calls.iter().filter(|call| is_string(call)).count();
    (n_quoted > 0 && ours.calls.len() == theirs.calls.len())
        .then_some("arguments in a string are not decoded")
}

fn llama3(_: &str, _: &Reading) -> Option<&'static str> {
    None
}

fn pythonic(_: &str, _: &Reading) -> Option<&'static str> {
    None
}

fn mistral(_: &str, _: &Reading) -> Option<&'static str> {
    None
}

fn reasoning(_: &str) -> Option<&'static str> {
    None
}
