//! Collects the pieces of an answer: text, thoughts, and calls, which Ollama's answers have whole.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::openai::chat::pieces::{call_id, is_object};
use souffleur_base::ids::RequestId;
use souffleur_request::OutputPiece;

/// A call with its arguments as an object.
#[derive(Debug, Serialize)]
pub(super) struct ToolCall {
    id: String,
    function: Function,
}

#[derive(Debug, Serialize)]
struct Function {
    index: usize,
    name: String,
    arguments: Box<RawValue>,
}

/// A part of an answer.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) text: String,
    pub(super) thinking: String,
    pub(super) calls: Vec<ToolCall>,
}

impl Part {
    /// Takes out the thought; `None` if there is none.
    pub(super) fn take_thought(&mut self) -> Option<Self> {
        let thinking = std::mem::take(&mut self.thinking);
        (!thinking.is_empty()).then(|| Self {
            thinking,
            ..Self::default()
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }
}

pub(super) struct Parts {
    rid: RequestId,
    calls: usize,
    /// Name of the unfinished call, and its arguments so far.
    open: Option<(String, String)>,
    has_thought: bool,
    /// The next text follows a thought or a call: the white space between them is not part of the text.
    trims: bool,
}

impl Parts {
    pub(super) fn new(rid: RequestId) -> Self {
        Self {
            rid,
            calls: 0,
            open: None,
            has_thought: false,
            trims: false,
        }
    }

    /// Converts a part of an answer: `text` if the answer is not parsed, otherwise its pieces. A call without an end is
    /// left out; a call whose arguments are no object becomes text.
    pub(super) fn add(&mut self, text: String, pieces: Vec<OutputPiece>) -> Part {
        let mut part = Part::default();
        self.add_text(&text, &mut part);
        for piece in pieces {
            match piece {
                OutputPiece::Text(text) => self.add_text(&text, &mut part),
                OutputPiece::Reasoning(text) => self.add_thought(&text, &mut part),
                OutputPiece::CallStart { name } => self.open = Some((name, String::new())),
                OutputPiece::CallArguments(text) => {
                    if let Some((_, arguments)) = &mut self.open {
                        arguments.push_str(&text);
                    }
                }
                OutputPiece::CallEnd => self.end_call(&mut part),
                OutputPiece::CallBroken { text } => {
                    self.open = None;
                    self.trims = false;
                    part.text.push_str(&text);
                }
            }
        }
        part
    }

    fn add_text(&mut self, text: &str, part: &mut Part) {
        let text = if self.trims { text.trim_start() } else { text };
        if !text.is_empty() {
            self.trims = false;
            part.text.push_str(text);
        }
    }

    fn add_thought(&mut self, text: &str, part: &mut Part) {
        let text = if self.has_thought {
            text
        } else {
            text.trim_start()
        };
        if !text.is_empty() {
            self.has_thought = true;
            part.thinking.push_str(text);
        }
        self.trims = true;
    }

    fn end_call(&mut self, part: &mut Part) {
        let Some((name, arguments)) = self.open.take() else {
            return;
        };
        self.trims = true;
        if !is_object(&arguments) {
            part.text.push_str(&arguments);
            return;
        }
        let Ok(arguments) = RawValue::from_string(arguments) else {
            return;
        };
        let index = self.calls;
        self.calls += 1;
        part.calls.push(ToolCall {
            id: call_id(&self.rid, index),
            function: Function {
                index,
                name,
                arguments,
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str, arguments: &str) -> Vec<OutputPiece> {
        let (first, rest) = arguments.split_at(1);
        vec![
            OutputPiece::CallStart {
                name: name.to_owned(),
            },
            OutputPiece::CallArguments(first.to_owned()),
            OutputPiece::CallArguments(rest.to_owned()),
            OutputPiece::CallEnd,
        ]
    }

    fn text(text: &str) -> OutputPiece {
        OutputPiece::Text(text.to_owned())
    }

    #[test]
    fn a_call_is_sent_when_it_is_whole_with_its_arguments_as_an_object() {
        let mut parts = Parts::new(RequestId::new("r"));
        let mut pieces = call("seat", r#"{"row": 12345678901234567890123}"#);
        let end = pieces.pop().expect("there are four");
        assert!(parts.add(String::new(), pieces).is_empty());
        let mut pieces = vec![end, text("\n")];
        pieces.extend(call("clock", "{}"));
        let part = parts.add(String::new(), pieces);
        assert_eq!(part.text, "");
        let written = serde_json::to_string(&part.calls).expect("plain data");
        let digits = r#""name":"seat","arguments":{"row": 12345678901234567890123}}"#;
        assert!(written.contains(digits), "{written}");
        let calls = serde_json::to_value(&part.calls[1]).expect("plain data");
        assert_eq!(
            calls["function"],
            json!({"index": 1, "name": "clock", "arguments": {}})
        );
        assert_ne!(part.calls[0].id, part.calls[1].id);
    }

    #[test]
    fn malformed_calls_become_text_and_unfinished_ones_are_left_out() {
        for arguments in ["[4]", "four"] {
            let mut parts = Parts::new(RequestId::new("r"));
            let part = parts.add(String::new(), call("seat", arguments));
            assert_eq!((part.text.as_str(), part.calls.len()), (arguments, 0));
        }
        let mut parts = Parts::new(RequestId::new("r"));
        let mut pieces = call("seat", "{\"row\": 4");
        pieces.pop();
        let broken = "{\"row\": 4".to_owned();
        pieces.push(OutputPiece::CallBroken { text: broken });
        pieces.push(text("\n  5}"));
        pieces.extend(call("seat", "{}").into_iter().take(2));
        let part = parts.add(String::new(), pieces);
        assert_eq!(part.text, "{\"row\": 4\n  5}");
        assert!(part.calls.is_empty());
    }

    #[test]
    fn white_space_around_a_thought_is_dropped() {
        let mut parts = Parts::new(RequestId::new("r"));
        let thought = OutputPiece::Reasoning("\nOne and one.".to_owned());
        let first = parts.add(String::new(), vec![thought, text("\n\n")]);
        assert_eq!(first.thinking, "One and one.");
        assert_eq!(first.text, "");
        let second = parts.add(String::new(), vec![text("Two.\n")]);
        assert_eq!(second.text, "Two.\n");
        let plain = Parts::new(RequestId::new("r")).add(" as it is".to_owned(), Vec::new());
        assert_eq!(plain.text, " as it is");
    }
}
