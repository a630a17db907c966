//! Converts items to chat messages: consecutive thoughts, text and calls of the assistant become one message.

use serde_json::{Map, Value, json};

use super::items::{OutputItem, Part};
use super::tools::name_in;
use crate::digits;
use crate::raw::Raw;

#[derive(Default)]
pub(super) struct Messages {
    done: Vec<Value>,
    answer: Option<Answer>,
}

#[derive(Default)]
struct Answer {
    reasoning: String,
    content: String,
    calls: Vec<Value>,
}

impl Messages {
    /// Adds a message of a role other than the assistant. The content is a text, or a list of texts and images.
    pub(super) fn push_message(&mut self, role: &str, content: Value) {
        self.end_answer();
        self.done.push(json!({"role": role, "content": content}));
    }

    pub(super) fn answer(&mut self, text: &str) {
        let is_over = |answer: &Answer| !answer.content.is_empty() && answer.calls.is_empty();
        if self.answer.as_ref().is_some_and(is_over) {
            self.end_answer();
        }
        self.open_answer().content.push_str(text);
    }

    /// Adds a thought of the assistant, which begins a new message if the current one has text or calls.
    pub(super) fn push_reasoning(&mut self, text: &str) {
        let is_over = |answer: &Answer| !answer.content.is_empty() || !answer.calls.is_empty();
        if self.answer.as_ref().is_some_and(is_over) {
            self.end_answer();
        }
        let reasoning = &mut self.open_answer().reasoning;
        if !reasoning.is_empty() {
            reasoning.push('\n');
        }
        reasoning.push_str(text);
    }

    pub(super) fn call(&mut self, call_id: &str, name: &str, arguments: Value) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": call_id, "type": "function", "function": function});
        self.open_answer().calls.push(call);
    }

    pub(super) fn result(&mut self, call_id: &str, content: Value) {
        self.end_answer();
        let result = json!({"role": "tool", "tool_call_id": call_id, "content": content});
        self.done.push(result);
    }

    /// Adds the model's output, without unfinished calls, which have no results.
    pub(super) fn output(&mut self, items: &[OutputItem]) {
        for item in items.iter().filter(|item| !item.is_unfinished_call()) {
            match item {
                OutputItem::Reasoning { content, .. } => self.push_reasoning(&text_of(content)),
                OutputItem::Message { content, .. } => self.answer(&text_of(content)),
                OutputItem::FunctionCall {
                    call_id,
                    name,
                    namespace,
                    arguments,
                    ..
                } => {
                    let name = name_in(namespace.as_deref(), name);
                    self.call(call_id, &name, parsed(arguments));
                }
                OutputItem::CustomToolCall {
                    call_id,
                    name,
                    namespace,
                    input,
                    ..
                } => {
                    let name = name_in(namespace.as_deref(), name);
                    self.call(call_id, &name, json!({ "input": input }));
                }
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<Value> {
        self.end_answer();
        self.done
    }

    fn open_answer(&mut self) -> &mut Answer {
        self.answer.get_or_insert_default()
    }

    fn end_answer(&mut self) {
        let Some(answer) = self.answer.take() else {
            return;
        };
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), answer.content.into());
        if !answer.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), answer.reasoning.into());
        }
        if !answer.calls.is_empty() {
            message.insert("tool_calls".to_owned(), answer.calls.into());
        }
        self.done.push(Value::Object(message));
    }
}

fn text_of(parts: &[Part]) -> String {
    let texts = parts.iter().map(|part| match part {
        Part::OutputText { text, .. } | Part::ReasoningText { text } => text.as_str(),
    });
    texts.collect()
}

/// The arguments of a call as an object, or as the model's text if that is not a JSON object or the object would lose
/// digits.
fn parsed(arguments: &str) -> Value {
    let raw = Raw::in_text(arguments);
    let object = raw.is_object().then(|| raw.parse_tree("arguments").ok());
    match object.flatten() {
        Some(object) if digits::may_differ(&object) => arguments.into(),
        Some(object) => object,
        None if arguments.trim().is_empty() => json!({}),
        None => arguments.into(),
    }
}
