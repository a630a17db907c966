//! The known differences between the gateway's parsers and this engine's. Each reason describes the gateway's parser.

use serde_json::Value;
use souffleur::state::output::{OutputFormats, ToolFormat};

use super::Reading;

/// Returns the reason for a difference, if it is intended.
pub fn find(
    formats: OutputFormats,
    text: &str,
    ours: &Reading,
    theirs: &Reading,
) -> Option<&'static str> {
    let solid = |text: &str| text.split_whitespace().collect::<String>();
    let (content, their_content) = (solid(&ours.content), solid(&theirs.content));
    let is_equal = ours.calls == theirs.calls && solid(&ours.reasoning) == solid(&theirs.reasoning);
    if is_equal && content == their_content {
        return Some("whitespace next to calls and reasoning is kept");
    }
    if is_equal && content.starts_with(&their_content) {
        return Some("content after the first call is dropped");
    }
    match formats.tool {
        Some(ToolFormat::Hermes) => hermes(text, ours, theirs),
        Some(ToolFormat::Llama3) => llama3(text, ours, theirs),
        Some(ToolFormat::Pythonic) => pythonic(text, ours, theirs),
        Some(ToolFormat::Mistral) => mistral(text, ours, theirs),
        _ => None,
    }
}

fn hermes(text: &str, ours: &Reading, theirs: &Reading) -> Option<&'static str> {
    let is_tight = |part: &str| !part.starts_with('\n') || !part.contains("\n</tool_call>");
    if text.split("<tool_call>").skip(1).any(is_tight) {
        return Some("a call needs newlines inside of its tags, and strings may hold no tags");
    }
    quoted(ours, theirs)
}

fn quoted(ours: &Reading, theirs: &Reading) -> Option<&'static str> {
    let mut arguments = theirs.calls.iter().map(|(_, arguments)| arguments);
    (arguments.any(Value::is_string) && ours.calls.len() == theirs.calls.len())
        .then_some("arguments in a string are not decoded")
}

fn llama3(text: &str, ours: &Reading, theirs: &Reading) -> Option<&'static str> {
    if text.contains("\"arguments\"") {
        return Some("arguments are read from `parameters` only");
    }
    if text.matches(';').count() >= ours.calls.len().max(1) {
        return Some("calls are split at every semicolon, also in strings");
    }
    if ours.calls.is_empty() && theirs.calls.len() == 1 {
        return Some("an object with a name is a call, whatever else it has");
    }
    (!text.trim_end().ends_with('}') && ours.calls.len() > theirs.calls.len())
        .then_some("content after calls makes the last call text, or drops it")
}

fn pythonic(text: &str, ours: &Reading, theirs: &Reading) -> Option<&'static str> {
    let n_tags = text.matches("<|python_").count();
    let n_own = 2 * text.matches("<|python_start|>").count();
    if n_tags > n_own {
        return Some("its tags are dropped in strings, too");
    }
    (ours.calls.is_empty() && theirs.calls.len() == 1)
        .then_some("positional arguments make a call without arguments")
}

fn mistral(text: &str, ours: &Reading, theirs: &Reading) -> Option<&'static str> {
    let is_known = |part: &str| part.trim_start_matches(' ').starts_with("[{");
    let is_named = text
        .split("[TOOL_CALLS]")
        .skip(1)
        .any(|part| !is_known(part));
    if is_named {
        return Some("calls are read from lists only, and strings may hold no tags");
    }
    if text.contains("[TOOL_CALLS][") {
        return Some("a list needs a blank before it");
    }
    quoted(ours, theirs)
}
