//! The JSON objects of Anthropic's responses.

use serde::Serialize;
use serde_json::value::RawValue;

use souffleur_base::ids::RequestId;
use souffleur_request::{FinishReason, Usage};

/// The signature that clients send back with a thought. Anthropic's signature proves that its model wrote the thought;
/// this one proves nothing: any client may change the conversation.
pub(super) const SIGNATURE: &str = "unsigned";

pub(super) struct Head {
    /// The id of the request, which is also the id of the message.
    pub(super) rid: RequestId,
    pub(super) model: String,
    pub(super) shows_thinking: bool,
}

impl Head {
    pub(super) fn message<'a>(
        &'a self,
        content: &'a [Block],
        stop: Stop,
        usage: UsageReport,
    ) -> Message<'a> {
        Message {
            id: self.rid.as_str(),
            kind: "message",
            role: "assistant",
            model: &self.model,
            content,
            stop,
            usage,
        }
    }
}

/// A whole message, or the empty message at the beginning of a stream.
#[derive(Serialize)]
pub(super) struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: &'a [Block],
    #[serde(flatten)]
    stop: Stop,
    usage: UsageReport,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        /// See [`SIGNATURE`]; empty until the thought has ended.
        signature: &'static str,
    },
    ToolUse {
        id: String,
        name: String,
        /// A JSON object, as the model wrote it.
        input: Box<RawValue>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Stop {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
}

impl Stop {
    /// `has_call`: the answer has a complete call. An answer that another client aborted has no stop reason.
    pub(super) fn new(reason: FinishReason, has_call: bool) -> Self {
        let named = |stop_reason| Self {
            stop_reason: Some(stop_reason),
            stop_sequence: None,
        };
        match reason {
            FinishReason::Abort => Self::default(),
            FinishReason::Length { .. } => named("max_tokens"),
            _ if has_call => named("tool_use"),
            FinishReason::StopString(text) => Self {
                stop_reason: Some("stop_sequence"),
                stop_sequence: Some(text),
            },
            FinishReason::StopToken(_) | FinishReason::Grammar => named("end_turn"),
        }
    }
}

/// Anthropic's token counts, in which `input_tokens` excludes cached tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct UsageReport {
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
    output_tokens_details: OutputTokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct OutputTokens {
    thinking_tokens: u32,
}

impl From<Usage> for UsageReport {
    fn from(usage: Usage) -> Self {
        // Tokens that a grammar forces at the start are computed with the prompt and may count as cached.
        let cached_tokens = usage.cached_tokens.min(usage.prompt_tokens);
        Self {
            input_tokens: usage.prompt_tokens - cached_tokens,
            // Tokens are written to the cache, but clients pay nothing for that.
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokens {
                thinking_tokens: usage.reasoning_tokens,
            },
        }
    }
}
