//! The choices of responses and chunks.

use serde::Serialize;

use crate::server::openai::logprobs::ChatLogprobs;
use crate::server::openai::wire::Matched;

/// A choice of a whole response.
#[derive(Serialize)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) message: Message,
    #[serde(flatten)]
    pub(super) details: ChoiceDetails,
}

/// The message of a whole response.
#[derive(Serialize)]
pub(super) struct Message {
    pub(super) role: &'static str,
    pub(super) content: String,
    pub(super) refusal: Option<String>,
}

/// A choice of a chunk.
#[derive(Serialize)]
pub(super) struct ChunkChoice {
    pub(super) index: usize,
    pub(super) delta: MessageDelta,
    #[serde(flatten)]
    pub(super) details: ChoiceDetails,
}

/// What a chunk adds to a message.
#[derive(Default, Serialize)]
pub(super) struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
}

/// What whole choices and chunks have in common.
#[derive(Default, Serialize)]
pub(super) struct ChoiceDetails {
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    pub(super) matched_stop: Option<Matched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
}
