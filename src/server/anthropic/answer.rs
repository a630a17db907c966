//! Writing a whole message.

use serde_json::value::RawValue;

use super::blocks::{Blocks, Kind, Part};
use super::wire::{Block, Head, SIGNATURE, Stop};
use crate::server::transcript::{News, Transcript};

/// The JSON of the message that the one transcript of a call is.
pub(super) fn write_message(head: &Head, transcripts: Vec<Transcript>) -> Vec<u8> {
    let transcript = transcripts.into_iter().next().unwrap_or_default();
    let News { delta, end } = transcript.into_news();
    let mut blocks = Blocks::new(head.rid.clone(), head.shows_thinking);
    let mut parts = Vec::new();
    blocks.add(delta.text, delta.pieces, &mut parts);
    blocks.finish(&mut parts);
    let has_call = blocks.has_complete_call();
    let stop = end.map(|end| Stop::new(end.reason, has_call));
    let content = content(parts);
    let message = head.message(&content, stop.unwrap_or_default(), delta.usage.into());
    serde_json::to_vec(&message).expect("messages have string keys only")
}

/// Puts the parts of blocks together.
fn content(parts: Vec<Part>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut text, mut call) = (String::new(), None);
    for part in parts {
        match part {
            Part::OpenText | Part::OpenThinking => (),
            Part::OpenCall { id, name } => call = Some((id, name)),
            Part::Text(more) | Part::Thinking(more) | Part::Input(more) => text.push_str(&more),
            Part::Close(kind) => {
                let text = std::mem::take(&mut text);
                blocks.push(match (kind, call.take()) {
                    (Kind::Thinking, _) => Block::Thinking {
                        thinking: text,
                        signature: SIGNATURE,
                    },
                    (_, Some((id, name))) => Block::ToolUse {
                        id,
                        name,
                        input: input(text),
                    },
                    (_, None) => Block::Text { text },
                });
            }
        }
    }
    blocks
}

/// Arguments as the model wrote them; an empty object if they are no object, as where the answer was cut off.
fn input(text: String) -> Box<RawValue> {
    let is_object = text.trim_start().starts_with('{');
    let read = is_object.then(|| RawValue::from_string(text).ok());
    read.flatten().unwrap_or_else(no_input)
}

/// The arguments of a call without any.
pub(super) fn no_input() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("it is JSON")
}
