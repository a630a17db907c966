//! The requests of the scheduler's tests, and the expected output of each.

use std::ops::ControlFlow;

use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::RequestId;
use souffleur_executor::fake::expected_output;
use souffleur_request::{CancelFlag, FinishReason, RequestTimeouts};
use souffleur_state::grammar::{GrammarFailure, GrammarProgress};
use souffleur_state::scheduler::news::RequestEnd;

use crate::grammars::{HashedGrammar, follow};

pub const VOCAB: u32 = 256;
pub const EOS: u32 = 0;
/// The number of lost steps in which a request was alone and that it survives, by whatever causes.
pub const SURVIVED_LONE_LOSSES: usize = 10;

/// The parameters of a request.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub ignore_eos: bool,
    pub stop_token: Option<u32>,
    pub salt: Option<&'static str>,
    /// The prompt position from which on log probabilities are requested.
    pub logprob_start: Option<u32>,
    pub timeouts: RequestTimeouts,
    pub priority: Option<i64>,
    pub grammar: Option<HashedGrammar>,
    /// Prompt positions at which recurrent states and window pages are kept.
    pub anchors: Vec<u32>,
    /// The request neither reads the prefix cache nor adds to it.
    pub bypasses_cache: bool,
    /// The most query tokens of a decode: the last token and its drafts.
    pub num_draft_tokens: Option<u32>,
}

impl Ask {
    /// The forced tokens at the start of the output, chosen by the tokenizer's rules.
    pub fn opening(&self) -> &[u32] {
        let opening = self
            .grammar
            .as_ref()
            .map_or(&[][..], |grammar| &grammar.opening);
        let is_end = |token: &u32| *token == EOS || Some(*token) == self.stop_token;
        let fits = opening.len() < self.max_new_tokens && !opening.iter().any(is_end);
        if fits && self.logprob_start.is_none() {
            opening
        } else {
            &[]
        }
    }

    /// The most query tokens of a decode; 1 without drafts.
    pub fn room(&self) -> u32 {
        self.num_draft_tokens.unwrap_or(0).max(1)
    }

    pub fn exactly(prompt: Vec<u32>, max_new_tokens: usize) -> Self {
        Self {
            prompt,
            max_new_tokens,
            ignore_eos: true,
            ..Self::default()
        }
    }
}

/// A lost step with a request.
#[derive(Clone, Debug)]
pub struct Loss {
    pub cause: String,
    /// No step in flight had another request.
    pub is_alone: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Reported(RequestEnd),
    StopFound,
}

/// A request with the tokens and the end that its client has received.
pub struct RequestView {
    pub ask: Ask,
    pub delivered: Vec<u32>,
    pub end: Option<End>,
    pub cached_tokens: u32,
    pub retractions: u32,
    pub rid: RequestId,
    pub flag: CancelFlag,
    /// Steps done since the cancel was handled.
    pub steps_since_cancel: Option<usize>,
    pub holds_memory: bool,
    pub input_logprobs: Vec<u32>,
    pub rejected_steps: usize,
    pub losses: Vec<Loss>,
    natural_output: Vec<u32>,
    natural_progress: Result<GrammarProgress, GrammarFailure>,
}

impl RequestView {
    pub fn new(ask: Ask, rid: RequestId, seed: u64, flag: CancelFlag) -> Self {
        let (natural_output, natural_progress) = natural_output(&ask, seed);
        Self {
            ask,
            delivered: Vec::new(),
            end: None,
            cached_tokens: 0,
            retractions: 0,
            rid,
            flag,
            steps_since_cancel: None,
            holds_memory: false,
            input_logprobs: Vec::new(),
            rejected_steps: 0,
            losses: Vec::new(),
            natural_output,
            natural_progress,
        }
    }

    /// The output of the request if no event cuts it short.
    pub fn natural_output(&self) -> &[u32] {
        &self.natural_output
    }

    pub fn is_cancelled(&self) -> bool {
        self.end == Some(End::Reported(RequestEnd::Finished(FinishReason::Abort)))
    }

    pub fn timed_out(&self) -> bool {
        matches!(self.failure(), Some(RequestError::Timeout { .. }))
    }

    pub fn failure(&self) -> Option<&RequestError> {
        match &self.end {
            Some(End::Reported(RequestEnd::Failed(error))) => Some(error),
            _ => None,
        }
    }

    pub fn check_end(&self) {
        let rid = &self.rid;
        match self.end.as_ref().expect("every request ends") {
            End::StopFound => {}
            End::Reported(RequestEnd::Finished(FinishReason::Abort)) => {
                assert!(
                    self.flag.is_raised(),
                    "{rid} was cancelled without its flag"
                );
            }
            End::Reported(RequestEnd::Finished(reason)) => {
                assert_eq!(self.delivered, self.natural_output(), "{rid}");
                let limit = self.ask.max_new_tokens;
                let stopped = self.delivered.last().copied().filter(|last| {
                    !self.ask.ignore_eos && (*last == EOS || Some(*last) == self.ask.stop_token)
                });
                let expected = match (stopped, self.natural_progress) {
                    (Some(token), _) => FinishReason::StopToken(token),
                    (None, Ok(GrammarProgress::Done)) => FinishReason::Grammar,
                    (None, _) => FinishReason::Length {
                        max_new_tokens: limit as u32,
                    },
                };
                assert_eq!(*reason, expected, "{rid}");
                self.check_input_logprobs();
            }
            End::Reported(RequestEnd::Failed(RequestError::Step(StepError::Rejected(_)))) => {
                assert_eq!(self.rejected_steps, 1, "{rid}");
            }
            End::Reported(RequestEnd::Failed(RequestError::Step(StepError::Lost(text)))) => {
                self.check_conviction(text);
            }
            End::Reported(RequestEnd::Failed(RequestError::OutOfMemory)) => {}
            End::Reported(RequestEnd::Failed(RequestError::Grammar(_))) => {
                assert!(self.natural_progress.is_err(), "{rid} must not fail");
                let opening = self.ask.opening().len();
                let expected = self.natural_output();
                let expected = if expected.len() == opening {
                    // The opening is delivered with the first token after it.
                    &[]
                } else {
                    expected
                };
                assert_eq!(self.delivered, expected, "{rid}");
            }
            End::Reported(RequestEnd::Failed(RequestError::Overloaded { .. })) => {
                assert!(
                    self.delivered.is_empty() && self.retractions == 0,
                    "{rid} was refused after it ran"
                );
            }
            End::Reported(RequestEnd::Failed(RequestError::Timeout { .. })) => {
                assert!(self.ask.timeouts.any(), "{rid} has no time limit");
            }
            other => panic!("{rid} ended with {other:?}"),
        }
    }

    /// Checks that the request was lost alone, by a cause that it was lost by before, or too often.
    fn check_conviction(&self, text: &str) {
        let (last, earlier) = self.losses.split_last().expect("a step was lost");
        let lone_losses = self.losses.iter().filter(|loss| loss.is_alone).count();
        let is_repeated = earlier.iter().any(|loss| loss.cause == last.cause);
        assert!(last.is_alone, "{}: {:?}", self.rid, self.losses);
        assert!(
            is_repeated || lone_losses > SURVIVED_LONE_LOSSES,
            "{}: {:?}",
            self.rid,
            self.losses
        );
        assert!(text.ends_with(&last.cause), "{text}");
    }

    /// Checks that every requested position has a log probability, once and in order.
    fn check_input_logprobs(&self) {
        let Some(start) = self.ask.logprob_start else {
            return;
        };
        let expected = self.ask.prompt.iter().skip(start as usize + 1);
        let expected: Vec<u32> = expected.copied().collect();
        assert_eq!(self.input_logprobs, expected, "{}", self.rid);
    }
}

fn natural_output(ask: &Ask, seed: u64) -> (Vec<u32>, Result<GrammarProgress, GrammarFailure>) {
    let is_stop = |token: u32| !ask.ignore_eos && (token == EOS || Some(token) == ask.stop_token);
    if let Some(grammar) = &ask.grammar {
        let mut context = ask.prompt.clone();
        let natural = |output: &[u32]| {
            context.truncate(ask.prompt.len());
            context.extend_from_slice(output);
            expected_output(&context, seed, 1, VOCAB)[0]
        };
        let is_end = |token| {
            if is_stop(token) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        return follow(grammar, ask.max_new_tokens, natural, is_end);
    }
    let mut output = expected_output(&ask.prompt, seed, ask.max_new_tokens, VOCAB);
    let len = output.iter().position(|&token| is_stop(token));
    output.truncate(len.map_or(output.len(), |at| at + 1));
    (output, Ok(GrammarProgress::Open))
}
