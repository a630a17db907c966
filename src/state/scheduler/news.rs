//! The scheduler's messages to the tokenizer: new tokens and ends of requests.

use smallvec::SmallVec;

use crate::sampling::RowLogprobs;
use crate::speculation::RowDrafts;
use souffleur_base::error::RequestError;
use souffleur_base::ids::{IntakeId, SeqId};

/// New tokens of a request, or its end.
#[derive(Debug)]
pub struct RequestTokens {
    /// The Tokenizer's number for the request. Cloning a `RequestId` would cost an atomic instruction for every token.
    pub intake: IntakeId,
    pub tokens: SmallVec<[u32; 2]>,
    pub logprobs: Option<Box<RowLogprobs>>,
    /// Prompt tokens from the cache, set from the first admission on.
    pub cached_tokens: u32,
    /// Prompt tokens from the store, included in `cached_tokens`.
    pub loaded_tokens: u32,
    pub num_retractions: u32,
    /// The drafts of the step that has sampled the tokens.
    pub drafts: RowDrafts,
    /// Why the request ended; an earlier stop string overrides it. Boxed, since most messages carry tokens.
    pub end: Option<Box<RequestEnd>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstAdmission {
    pub seq: SeqId,
    pub intake: IntakeId,
    pub submitted_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestEnd {
    Finished(FinishReason),
    Failed(RequestError),
}

impl RequestEnd {
    /// True if the executor can tell this end from a step's result.
    pub fn shows_in_results(&self) -> bool {
        matches!(
            self,
            Self::Finished(
                FinishReason::StopToken(_) | FinishReason::Grammar | FinishReason::Length { .. }
            )
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// EOS or a stop token was sampled.
    StopToken(u32),
    StopString(String),
    /// The grammar is complete, and no token may follow.
    Grammar,
    /// `max_new_tokens` or the context length was reached.
    Length {
        max_new_tokens: u32,
    },
    Abort,
}

impl FinishReason {
    /// The name in OpenAI's and SGLang's APIs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::StopToken(_) | Self::StopString(_) | Self::Grammar => "stop",
            Self::Length { .. } => "length",
            Self::Abort => "abort",
        }
    }
}
