//! The JSON types of the choices in chat completions and their chunks.

use serde::Serialize;

use crate::openai::logprobs::ChatLogprobs;
use crate::openai::wire::Matched;

#[derive(Serialize)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) message: Message,
    #[serde(flatten)]
    pub(super) details: ChoiceDetails,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Message {
    pub(super) role: &'static str,
    pub(super) content: Option<String>,
    pub(super) refusal: Option<String>,
    #[serde(flatten)]
    pub(super) reasoning: ReasoningText,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCall>,
}

#[derive(Serialize)]
pub(super) struct ChunkChoice {
    pub(super) index: usize,
    pub(super) delta: MessageDelta,
    #[serde(flatten)]
    pub(super) details: ChoiceDetails,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
    #[serde(flatten)]
    pub(super) reasoning: ReasoningText,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_calls: Option<[ToolCallDelta; 1]>,
}

/// Reasoning, under the field name from the configuration.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct ReasoningText {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ToolCall {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) function: Function,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// A chunk's part of a call. Clients append each string to the earlier ones, so the id and the name are sent once.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ToolCallDelta {
    pub(super) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    pub(super) function: FunctionDelta,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) arguments: String,
}

#[derive(Default, Serialize)]
pub(super) struct ChoiceDetails {
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    pub(super) matched_stop: Option<Matched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
}
