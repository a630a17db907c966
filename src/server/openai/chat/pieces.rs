//! Converts the pieces of an answer to OpenAI's messages and deltas.

use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use super::choice::{
    Function, FunctionDelta, Message, MessageDelta, ReasoningText, ToolCall, ToolCallDelta,
};
use super::reasoning::Reasoning;
use crate::config::ReasoningField;
use souffleur_base::ids::RequestId;
use souffleur_request::OutputPiece;

/// Bytes of the hash in a call's id, which are written as hexadecimal digits.
const ID_BYTES: usize = 12;

#[derive(Clone, Copy)]
pub(super) struct ReasoningStyle {
    pub(super) reasoning: Reasoning,
    pub(super) field: ReasoningField,
}

impl ReasoningStyle {
    fn named(self, text: String) -> ReasoningText {
        let text = (!text.is_empty()).then_some(text);
        match self.field {
            ReasoningField::ReasoningContent => ReasoningText {
                reasoning_content: text,
                reasoning: None,
            },
            ReasoningField::Reasoning => ReasoningText {
                reasoning_content: None,
                reasoning: text,
            },
        }
    }
}

pub(super) struct Pieces {
    rid: RequestId,
    style: ReasoningStyle,
    calls: usize,
    complete_calls: usize,
    sent_calls: usize,
    /// Reasoning that is held back until it has ended.
    held: String,
}

impl Pieces {
    pub(super) fn new(rid: RequestId, style: ReasoningStyle) -> Self {
        Self {
            rid,
            style,
            calls: 0,
            complete_calls: 0,
            sent_calls: 0,
            held: String::new(),
        }
    }

    /// Returns whether calls were sent and all of them are complete.
    pub(super) fn has_complete_calls(&self) -> bool {
        self.sent_calls > 0 && self.sent_calls == self.complete_calls
    }

    /// Converts a whole answer: `text` if the answer is not parsed, otherwise its pieces. A call without an end is left
    /// out, as a message cannot mark it as incomplete; a malformed call becomes text.
    pub(super) fn message(&mut self, text: String, pieces: Vec<OutputPiece>) -> Message {
        let (mut content, mut reasoning) = (text, String::new());
        let mut tool_calls: Vec<ToolCall> = Vec::new();
        let mut open = None;
        for piece in pieces {
            match piece {
                OutputPiece::Text(text) => content.push_str(&text),
                OutputPiece::Reasoning(text) => reasoning.push_str(&text),
                OutputPiece::CallStart { name } => {
                    let id = call_id(&self.rid, self.calls);
                    self.calls += 1;
                    let arguments = String::new();
                    open = Some(ToolCall {
                        id,
                        kind: "function",
                        function: Function { name, arguments },
                    });
                }
                OutputPiece::CallArguments(text) => {
                    if let Some(call) = &mut open {
                        call.function.arguments.push_str(&text);
                    }
                }
                OutputPiece::CallEnd => {
                    self.complete_calls += 1;
                    self.sent_calls += 1;
                    tool_calls.extend(open.take());
                }
                OutputPiece::CallBroken { text } => {
                    open = None;
                    content.push_str(&text);
                }
            }
        }
        let has_other_output = !reasoning.is_empty() || !tool_calls.is_empty();
        if self.style.reasoning == Reasoning::Hidden {
            reasoning.clear();
        }
        Message {
            role: "assistant",
            content: (!content.is_empty() || !has_other_output).then_some(content),
            refusal: None,
            reasoning: self.style.named(reasoning),
            tool_calls,
        }
    }

    /// Converts a part of an answer to deltas, one for each chunk.
    pub(super) fn deltas(&mut self, text: String, pieces: Vec<OutputPiece>) -> Vec<MessageDelta> {
        let mut deltas = Vec::with_capacity(1);
        self.add_text(text, &mut deltas);
        for piece in pieces {
            match piece {
                OutputPiece::Text(text) => self.add_text(text, &mut deltas),
                OutputPiece::Reasoning(text) => self.add_reasoning(text, &mut deltas),
                OutputPiece::CallStart { name } => self.start_call(name, &mut deltas),
                OutputPiece::CallArguments(text) => self.add_arguments(text, &mut deltas),
                OutputPiece::CallEnd => self.complete_calls += 1,
                // Deltas that were sent cannot be taken back.
                OutputPiece::CallBroken { .. } => (),
            }
        }
        deltas
    }

    pub(super) fn add_held(&mut self, deltas: &mut Vec<MessageDelta>) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            deltas.push(MessageDelta {
                reasoning: self.style.named(held),
                ..MessageDelta::default()
            });
        }
    }

    fn add_text(&mut self, text: String, deltas: &mut Vec<MessageDelta>) {
        if text.is_empty() {
            return;
        }
        self.add_held(deltas);
        deltas.push(MessageDelta {
            content: Some(text),
            ..MessageDelta::default()
        });
    }

    fn add_reasoning(&mut self, text: String, deltas: &mut Vec<MessageDelta>) {
        match self.style.reasoning {
            Reasoning::Hidden => (),
            Reasoning::Whole => self.held.push_str(&text),
            Reasoning::Streamed | Reasoning::InText => {
                if !text.is_empty() {
                    deltas.push(MessageDelta {
                        reasoning: self.style.named(text),
                        ..MessageDelta::default()
                    });
                }
            }
        }
    }

    fn start_call(&mut self, name: String, deltas: &mut Vec<MessageDelta>) {
        self.add_held(deltas);
        let index = self.calls;
        self.calls += 1;
        self.sent_calls += 1;
        deltas.push(call_delta(ToolCallDelta {
            index,
            id: Some(call_id(&self.rid, index)),
            kind: Some("function"),
            function: FunctionDelta {
                name: Some(name),
                arguments: String::new(),
            },
        }));
    }

    fn add_arguments(&self, arguments: String, deltas: &mut Vec<MessageDelta>) {
        let Some(index) = self.calls.checked_sub(1) else {
            return;
        };
        if arguments.is_empty() {
            return;
        }
        let function = FunctionDelta {
            name: None,
            arguments,
        };
        deltas.push(call_delta(ToolCallDelta {
            index,
            id: None,
            kind: None,
            function,
        }));
    }
}

fn call_delta(call: ToolCallDelta) -> MessageDelta {
    MessageDelta {
        tool_calls: Some([call]),
        ..MessageDelta::default()
    }
}

/// Returns whether the arguments of a call are a JSON object.
pub(crate) fn is_object(arguments: &str) -> bool {
    let is_json = serde_json::from_str::<IgnoredAny>(arguments).is_ok();
    is_json && arguments.trim_start().starts_with('{')
}

pub(crate) fn call_id(rid: &RequestId, index: usize) -> String {
    call_id_with("call_", rid, index)
}

/// The id of a tool call: a hash of the request's id and the call's index.
pub(crate) fn call_id_with(prefix: &str, rid: &RequestId, index: usize) -> String {
    let mut hash = Sha256::new();
    hash.update(rid.as_str());
    hash.update((index as u64).to_le_bytes());
    let digits = hash.finalize();
    let digits = digits.iter().take(ID_BYTES);
    digits.fold(prefix.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}
