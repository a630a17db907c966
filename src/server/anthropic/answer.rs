//! Writes a whole (non-streamed) answer of Anthropic's Messages API.

use serde_json::value::RawValue;

use super::blocks::{Blocks, Kind, Part};
use super::wire::{Block, Head, SIGNATURE, Stop};
use crate::openai::chat::pieces::is_object;
use crate::transcript::{Transcript, Update};

pub(super) fn write_message(head: &Head, transcripts: Vec<Transcript>) -> Vec<u8> {
    let transcript = transcripts.into_iter().next().unwrap_or_default();
    let Update { delta, end } = transcript.into_update();
    let mut blocks = Blocks::new(head.rid.clone(), head.shows_thinking);
    let mut parts = Vec::new();
    blocks.add(delta.text, delta.pieces, &mut parts);
    blocks.finish(&mut parts);
    let content = content(parts);
    let is_call = |block: &Block| matches!(block, Block::ToolUse { .. });
    let has_call = content.iter().any(is_call);
    let stop = end.map(|end| Stop::new(end.reason, has_call));
    let message = head.message(&content, stop.unwrap_or_default(), delta.usage.into());
    serde_json::to_vec(&message).expect("messages have string keys only")
}

/// Merges parts into blocks. An unfinished call is left out, since a message cannot mark it as incomplete. A malformed
/// call becomes text, joined with the text around it. A message without any block gets an empty text block.
fn content(parts: Vec<Part>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut text, mut call, mut is_broken) = (String::new(), None, false);
    for part in parts {
        match part {
            Part::OpenText | Part::OpenThinking => (),
            Part::OpenCall { id, name } => call = Some((id, name)),
            Part::Text(more) | Part::Thinking(more) | Part::Input(more) => text.push_str(&more),
            Part::CutOff => {
                text.clear();
                call = None;
            }
            Part::Broken(broken) => {
                text.clear();
                call = None;
                is_broken = true;
                add_text(&mut blocks, broken);
            }
            Part::Close(Kind::Text) if std::mem::take(&mut is_broken) => {
                add_text(&mut blocks, std::mem::take(&mut text));
            }
            Part::Close(kind) => {
                is_broken = false;
                let text = std::mem::take(&mut text);
                blocks.push(match (kind, call.take()) {
                    (Kind::Thinking, _) => Block::Thinking {
                        thinking: text,
                        signature: SIGNATURE,
                    },
                    (_, Some((id, name))) => tool_use(id, name, text),
                    (_, None) => Block::Text { text },
                });
            }
        }
    }
    if blocks.is_empty() {
        let text = String::new();
        blocks.push(Block::Text { text });
    }
    blocks
}

fn add_text(blocks: &mut Vec<Block>, more: String) {
    match blocks.last_mut() {
        Some(Block::Text { text }) => text.push_str(&more),
        _ => blocks.push(Block::Text { text: more }),
    }
}

/// A `tool_use` with the arguments that the model wrote, or a text block if they are not the JSON object it requires.
fn tool_use(id: String, name: String, arguments: String) -> Block {
    match RawValue::from_string(arguments.clone()) {
        Ok(input) if is_object(&arguments) => Block::ToolUse { id, name, input },
        _ => Block::Text { text: arguments },
    }
}

pub(super) fn no_input() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("it is JSON")
}
