//! Converts the pieces of an answer to parts of content blocks, from which whole messages and streams are written.

use crate::openai::chat::pieces::{call_id_with, is_object};
use souffleur_base::ids::RequestId;
use souffleur_request::OutputPiece;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    OpenText,
    OpenThinking,
    OpenCall {
        id: String,
        name: String,
    },
    Text(String),
    Thinking(String),
    Input(String),
    Close(Kind),
    /// The open call's block ends, but the call is unfinished.
    CutOff,
    /// The open call's block ends: the call was malformed, and this is its text.
    Broken(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thinking,
    Call,
}

pub(super) struct Blocks {
    rid: RequestId,
    shows_thinking: bool,
    open: Option<Kind>,
    has_block: bool,
    calls: usize,
    complete_calls: usize,
    input: String,
    /// A call was malformed. The text that follows is the rest of the call, so its leading white space is kept.
    is_after_broken: bool,
    /// The leading white space of a text, which opens no block until other text follows: Anthropic's API refuses
    /// blocks of white space alone in a later request.
    blank: String,
}

impl Blocks {
    pub(super) fn new(rid: RequestId, shows_thinking: bool) -> Self {
        Self {
            rid,
            shows_thinking,
            open: None,
            has_block: false,
            calls: 0,
            complete_calls: 0,
            input: String::new(),
            is_after_broken: false,
            blank: String::new(),
        }
    }

    /// Returns whether there are calls and all of them are complete, with arguments that a block can hold.
    pub(super) fn has_complete_calls(&self) -> bool {
        self.complete_calls > 0 && self.complete_calls == self.calls
    }

    /// Adds a part of an answer: `text` if the answer is not parsed, otherwise its pieces.
    pub(super) fn add(&mut self, text: String, pieces: Vec<OutputPiece>, out: &mut Vec<Part>) {
        self.add_text(text, out);
        for piece in pieces {
            match piece {
                OutputPiece::Text(text) => self.add_text(text, out),
                OutputPiece::Reasoning(text) => self.add_thinking(text, out),
                OutputPiece::CallStart { name } => self.start_call(name, out),
                OutputPiece::CallArguments(text) => {
                    if self.open == Some(Kind::Call) && !text.is_empty() {
                        self.input.push_str(&text);
                        out.push(Part::Input(text));
                    }
                }
                OutputPiece::CallEnd => {
                    let input = std::mem::take(&mut self.input);
                    self.complete_calls += usize::from(is_object(&input));
                    if self.open.take().is_some() {
                        out.push(Part::Close(Kind::Call));
                    }
                }
                OutputPiece::CallBroken { text } => {
                    self.input.clear();
                    if self.open.take().is_some() {
                        self.is_after_broken = true;
                        out.push(Part::Broken(text));
                    }
                }
            }
        }
    }

    /// Ends the answer. An answer without blocks gets a text block with the remaining text.
    pub(super) fn finish(&mut self, out: &mut Vec<Part>) {
        if !self.has_block {
            self.open(Kind::Text, Part::OpenText, out);
            let blank = std::mem::take(&mut self.blank);
            if !blank.is_empty() {
                out.push(Part::Text(blank));
            }
        }
        self.close(out);
    }

    fn add_text(&mut self, text: String, out: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        if self.open == Some(Kind::Text) {
            out.push(Part::Text(text));
            return;
        }
        self.blank.push_str(&text);
        if self.blank.trim_start().is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.blank);
        // White space between a thought or call and the text after it is not part of the text.
        let text = if self.has_block && !self.is_after_broken {
            text.trim_start().to_owned()
        } else {
            text
        };
        self.open(Kind::Text, Part::OpenText, out);
        out.push(Part::Text(text));
    }

    fn add_thinking(&mut self, text: String, out: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(Kind::Thinking) {
            self.open(Kind::Thinking, Part::OpenThinking, out);
        }
        if self.shows_thinking {
            out.push(Part::Thinking(text));
        }
    }

    fn start_call(&mut self, name: String, out: &mut Vec<Part>) {
        let id = call_id_with("toolu_", &self.rid, self.calls);
        self.calls += 1;
        self.input.clear();
        self.open(Kind::Call, Part::OpenCall { id, name }, out);
    }

    fn open(&mut self, kind: Kind, part: Part, out: &mut Vec<Part>) {
        self.close(out);
        if kind != Kind::Text {
            self.blank.clear();
        }
        self.open = Some(kind);
        self.is_after_broken = false;
        self.has_block = true;
        out.push(part);
    }

    /// Closes the open block. An open call is cut off.
    fn close(&mut self, out: &mut Vec<Part>) {
        match self.open.take() {
            Some(Kind::Call) => out.push(Part::CutOff),
            Some(kind) => out.push(Part::Close(kind)),
            None => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_malformed_call_keeps_its_white_space() {
        let mut blocks = Blocks::new(RequestId::new("r"), false);
        let (name, text) = ("seat".to_owned(), "{\"row\": 4".to_owned());
        let pieces = vec![
            OutputPiece::CallStart { name },
            OutputPiece::CallBroken { text },
            OutputPiece::Text("\n  ".to_owned()),
            OutputPiece::Text("5}".to_owned()),
        ];
        let mut parts = Vec::new();
        blocks.add(String::new(), pieces, &mut parts);
        assert_eq!(parts.last(), Some(&Part::Text("\n  5}".to_owned())));
    }

    #[test]
    fn a_call_that_no_block_can_hold_is_not_complete() {
        for (arguments, is_complete) in [
            (r#"{"a": 1}"#, true),
            ("{}", true),
            (r#"{"a": 1,}"#, false),
            ("four", false),
            ("[4]", false),
        ] {
            let mut blocks = Blocks::new(RequestId::new("r"), false);
            let (first, rest) = arguments.split_at(1);
            let name = "seat".to_owned();
            let pieces = vec![
                OutputPiece::CallStart { name },
                OutputPiece::CallArguments(first.to_owned()),
                OutputPiece::CallArguments(rest.to_owned()),
                OutputPiece::CallEnd,
            ];
            blocks.add(String::new(), pieces, &mut Vec::new());
            assert_eq!(blocks.has_complete_calls(), is_complete, "{arguments}");
        }
    }
}
