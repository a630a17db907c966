//! Writes an answer as Anthropic's stream of message events.

use serde::Serialize;
use serde_json::json;

use super::answer::no_input;
use super::blocks::{Blocks, Kind, Part};
use super::errors::{ErrorForm, HttpId};
use super::wire::{Block, Head, SIGNATURE, Stop, UsageReport};
use crate::error::ApiError;
use crate::sse::{Chunks, Render};
use crate::transcript::Update;
use souffleur_request::Usage;

/// Writes the events of one message. Blocks never interleave.
pub(super) struct MessageStream {
    head: Head,
    id: HttpId,
    blocks: Blocks,
    index: usize,
    has_begun: bool,
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: usize,
    delta: BlockDelta<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum BlockDelta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

impl MessageStream {
    pub(super) fn new(head: Head, id: HttpId) -> Self {
        Self {
            blocks: Blocks::new(head.rid.clone(), head.shows_thinking),
            head,
            id,
            index: 0,
            has_begun: false,
        }
    }

    /// Writes the first event once. It has the number of cached tokens, so it is not written before `usage` is known.
    fn begin(&mut self, usage: Usage, out: &mut Chunks) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let message = self.head.message(&[], Stop::default(), usage.into());
        let start = json!({"type": "message_start", "message": message});
        out.event("message_start", &start);
    }

    fn write(&mut self, part: Part, out: &mut Chunks) {
        match part {
            Part::OpenText => self.open(
                Block::Text {
                    text: String::new(),
                },
                out,
            ),
            Part::OpenThinking => self.open(
                Block::Thinking {
                    thinking: String::new(),
                    signature: "",
                },
                out,
            ),
            Part::OpenCall { id, name } => self.open(
                Block::ToolUse {
                    id,
                    name,
                    input: no_input(),
                },
                out,
            ),
            Part::Text(text) => self.delta(BlockDelta::Text { text: &text }, out),
            Part::Thinking(text) => {
                self.delta(BlockDelta::Thinking { thinking: &text }, out);
            }
            Part::Input(text) => {
                self.delta(
                    BlockDelta::InputJson {
                        partial_json: &text,
                    },
                    out,
                );
            }
            Part::Close(kind) => self.close(kind, out),
            Part::CutOff | Part::Broken(_) => self.close(Kind::Call, out),
        }
    }

    fn open(&self, block: Block, out: &mut Chunks) {
        #[derive(Serialize)]
        struct Start {
            #[serde(rename = "type")]
            kind: &'static str,
            index: usize,
            content_block: Block,
        }
        let start = Start {
            kind: "content_block_start",
            index: self.index,
            content_block: block,
        };
        out.event(start.kind, &start);
    }

    fn delta(&self, delta: BlockDelta<'_>, out: &mut Chunks) {
        let delta = Delta {
            kind: "content_block_delta",
            index: self.index,
            delta,
        };
        out.event(delta.kind, &delta);
    }

    fn close(&mut self, kind: Kind, out: &mut Chunks) {
        if kind == Kind::Thinking {
            let signature = SIGNATURE;
            self.delta(BlockDelta::Signature { signature }, out);
        }
        let name = "content_block_stop";
        out.event(name, &json!({"type": name, "index": self.index}));
        self.index += 1;
    }
}

impl Render for MessageStream {
    fn update(&mut self, _: usize, update: Update, out: &mut Chunks) {
        if update.is_empty() {
            return;
        }
        let Update { delta, end } = update;
        self.begin(delta.usage, out);
        let mut parts = Vec::new();
        self.blocks.add(delta.text, delta.pieces, &mut parts);
        if end.is_some() {
            self.blocks.finish(&mut parts);
        }
        for part in parts {
            self.write(part, out);
        }
        if let Some(end) = end {
            let stop = Stop::new(end.reason, self.blocks.has_complete_calls());
            let usage = UsageReport::from(delta.usage);
            let name = "message_delta";
            out.event(name, &json!({"type": name, "delta": stop, "usage": usage}));
        }
    }

    fn end(&mut self, out: &mut Chunks) {
        out.event("message_stop", &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Chunks) {
        out.event("error", &ErrorForm::new(error, &self.id));
    }

    fn close(&mut self, _: &mut Chunks) {}

    /// Before the first event of a message, clients accept comments, but no other event.
    fn keep_alive(&mut self, out: &mut Chunks) {
        if self.has_begun {
            out.event("ping", &json!({"type": "ping"}))
        } else {
            out.comment()
        }
    }
}
