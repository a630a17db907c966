//! The scheduler's news to the tokenizer about requests.

use smallvec::SmallVec;

use crate::error::RequestError;
use crate::ids::IntakeId;
use crate::state::sampling::RowLogprobs;

/// News of one request.
#[derive(Debug)]
pub struct RequestTokens {
    /// The request, by the Tokenizer's number: its name is counted by reference, which would be a locked instruction for
    /// every token.
    pub intake: IntakeId,
    /// New output tokens.
    pub tokens: SmallVec<[u32; 2]>,
    /// Their log probabilities, and the prompt's.
    pub logprobs: Option<Box<RowLogprobs>>,
    /// Prompt tokens that came from the cache; known from the first admission on.
    pub cached_tokens: u32,
    /// Of these, tokens that came from the store.
    pub loaded_tokens: u32,
    /// Retractions so far.
    pub num_retractions: u32,
    /// Why the request ended, as far as the scheduler knows: an earlier stop string overrides it. Apart, since most news
    /// are tokens.
    pub end: Option<Box<RequestEnd>>,
}

/// A request left the queue for the first time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstAdmission {
    /// The request, by the Tokenizer's number.
    pub intake: IntakeId,
    /// When it came in, as its submission says.
    pub submitted_s: f64,
}

/// How the scheduler saw a request end.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEnd {
    /// It ended by itself or was cancelled.
    Finished(FinishReason),
    /// It was refused or failed.
    Failed(RequestError),
}

impl RequestEnd {
    /// The executor sees this end in a step's result.
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
    /// The output is complete by its grammar, and nothing may follow.
    Grammar,
    /// `max_new_tokens` or the context's end was reached.
    Length {
        /// The limit that was reached.
        max_new_tokens: u32,
    },
    /// The client cancelled.
    Abort,
}

impl FinishReason {
    /// OpenAI's and SGLang's word for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::StopToken(_) | Self::StopString(_) | Self::Grammar => "stop",
            Self::Length { .. } => "length",
            Self::Abort => "abort",
        }
    }
}
