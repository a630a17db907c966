//! The JSON types of a response's output items.

use serde::Serialize;

use crate::openai::logprobs::ChatToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ItemStatus {
    InProgress,
    Completed,
    /// The answer was cut off inside the item.
    Incomplete,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum OutputItem {
    Reasoning {
        id: String,
        status: ItemStatus,
        summary: [(); 0],
        content: Vec<Part>,
        encrypted_content: Option<String>,
    },
    Message {
        id: String,
        status: ItemStatus,
        role: &'static str,
        content: Vec<Part>,
    },
    FunctionCall {
        id: String,
        status: ItemStatus,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        arguments: String,
    },
    CustomToolCall {
        id: String,
        status: ItemStatus,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        input: String,
    },
}

impl OutputItem {
    pub(super) fn is_unfinished_call(&self) -> bool {
        match self {
            Self::FunctionCall { status, .. } | Self::CustomToolCall { status, .. } => {
                *status != ItemStatus::Completed
            }
            Self::Reasoning { .. } | Self::Message { .. } => false,
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::CustomToolCall { id, .. } => id,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part {
    OutputText {
        text: String,
        annotations: [(); 0],
        logprobs: Vec<ChatToken>,
    },
    ReasoningText {
        text: String,
    },
}

impl Part {
    pub(super) fn text(text: String, logprobs: Vec<ChatToken>) -> Self {
        Self::OutputText {
            text,
            annotations: [],
            logprobs,
        }
    }

    pub(super) fn reasoning(text: String) -> Self {
        Self::ReasoningText { text }
    }
}
