//! The scheduler's messages to the tokenizer about requests.

use smallvec::SmallVec;

use crate::error::RequestError;
use crate::ids::IntakeId;
use crate::state::sampling::RowLogprobs;

/// New tokens of a request, or its end.
#[derive(Debug)]
pub struct RequestTokens {
    /// The Tokenizer's number of the request: cloning its id would be a locked instruction for every token.
    pub intake: IntakeId,
    /// New output tokens.
    pub tokens: SmallVec<[u32; 2]>,
    /// Their log probabilities, and the prompt's.
    pub logprobs: Option<Box<RowLogprobs>>,
    /// Prompt tokens from the cache, set from the first admission on.
    pub cached_tokens: u32,
    /// Prompt tokens from the store, included in `cached_tokens`.
    pub loaded_tokens: u32,
    /// Retractions so far.
    pub num_retractions: u32,
    /// Why the request ended; an earlier stop string overrides it. Boxed, since most news are tokens.
    pub end: Option<Box<RequestEnd>>,
}

/// A request left the queue for the first time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstAdmission {
    /// The Tokenizer's number of the request.
    pub intake: IntakeId,
    /// Its submission time.
    pub submitted_s: f64,
}

/// A request's end from the scheduler's view.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEnd {
    /// It finished or was cancelled.
    Finished(FinishReason),
    /// It was rejected or failed.
    Failed(RequestError),
}

impl RequestEnd {
    /// Whether a step's result shows this end to the executor.
    pub fn shows_in_results(&self) -> bool {
        matches!(
            self,
            Self::Finished(
                FinishReason::StopToken(_) | FinishReason::Grammar | FinishReason::Length { .. }
            )
        )
    }
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// EOS or a stop token was sampled.
    StopToken(u32),
    /// A stop string was completed.
    StopString(String),
    /// The grammar is complete, and no token may follow.
    Grammar,
    /// `max_new_tokens` or the context length was reached.
    Length {
        /// The limit that was reached.
        max_new_tokens: u32,
    },
    /// The client cancelled.
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
