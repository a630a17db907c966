//! Renders probe chats to detect how a template takes earlier tool calls, and system messages after a user message.

use serde_json::{Value, json};

use super::super::calls::{ArgumentForm, EmptyContent};

const NAME: &str = "probed_function";
const ARGUMENT: &str = "probed argument";

/// Finds the form of a call whose name and argument the template renders; `None` if it renders no form.
///
/// `render` passes messages to the template unchanged, and returns `None` if the template fails.
pub(super) fn call_form(
    source: &str,
    render: impl Fn(&Value) -> Option<String>,
) -> Option<(ArgumentForm, EmptyContent)> {
    let contents = if compares_content_with_none(source) {
        [EmptyContent::Null, EmptyContent::Text]
    } else {
        [EmptyContent::Text, EmptyContent::Null]
    };
    let forms = contents.into_iter().flat_map(|content| {
        let arguments = [ArgumentForm::Object, ArgumentForm::Text];
        arguments.map(|arguments| (arguments, content))
    });
    let mut forms = forms;
    forms.find(|(arguments, content)| {
        let rendered = render(&chat(*arguments, *content));
        rendered.is_some_and(|text| text.contains(NAME) && text.contains(ARGUMENT))
    })
}

fn compares_content_with_none(source: &str) -> bool {
    let source: String = source.split_whitespace().collect();
    let subjects = ["content']", "content\"]", ".content"];
    let tests = ["isnone", "isnotnone", "!=none", "==none"];
    subjects.iter().any(|subject| {
        let mut asks = tests.iter().map(|test| format!("{subject}{test}"));
        asks.any(|ask| source.contains(&ask))
    })
}

/// Returns whether a template renders a system message after a user message in its place. Other templates reject such
/// a message, leave it out, or move it to the beginning.
pub(super) fn takes_late_system(render: impl Fn(&Value) -> Option<String>) -> bool {
    const TEXTS: [&str; 4] = [
        "probed first",
        "probed second",
        "probed third",
        "probed fourth",
    ];
    let roles = ["system", "user"].into_iter().cycle();
    let messages = roles
        .zip(TEXTS)
        .map(|(role, text)| json!({"role": role, "content": text}));
    let Some(rendered) = render(&messages.collect()) else {
        return false;
    };
    let places: Option<Vec<usize>> = TEXTS.iter().map(|text| rendered.find(text)).collect();
    places.is_some_and(|places| places.is_sorted())
}

fn chat(arguments: ArgumentForm, content: EmptyContent) -> Value {
    let arguments = match arguments {
        ArgumentForm::Object => json!({"text": ARGUMENT}),
        ArgumentForm::Text => json!(json!({"text": ARGUMENT}).to_string()),
    };
    let content = match content {
        EmptyContent::Text => json!(""),
        EmptyContent::Null => json!(null),
    };
    // Mistral's templates accept this id.
    let id = "aBcDeF123";
    json!([
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": content, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": NAME, "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": id, "name": NAME, "content": "4"},
    ])
}
