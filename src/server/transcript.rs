//! What one request has given so far.

use crate::error::RequestError;
use crate::executor::TokenLogprobs;
use crate::request::{Delta, Event, FinishReason, Usage};

/// One event, without the difference between delta and end.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) delta: Delta,
    pub(super) end: Option<End>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct End {
    pub(super) reason: FinishReason,
    /// Seconds from intake to the end.
    pub(super) e2e_latency_s: f64,
}

impl News {
    /// Takes an event apart.
    ///
    /// # Errors
    /// The reason of a failed request.
    pub(super) fn of(event: Event) -> Result<Self, RequestError> {
        match event {
            Event::Delta(delta) => Ok(Self { delta, end: None }),
            Event::Finished(finished) | Event::Cancelled(finished) => {
                let finished = *finished;
                let end = End {
                    reason: finished.reason,
                    e2e_latency_s: finished.e2e_latency_s,
                };
                Ok(Self {
                    delta: finished.delta,
                    end: Some(end),
                })
            }
            Event::Failed(error) => Err(error),
        }
    }

    /// True if a client would learn nothing from it.
    pub(super) fn is_empty(&self) -> bool {
        let delta = &self.delta;
        delta.text.is_empty()
            && delta.tokens.is_empty()
            && delta.output_logprobs.is_empty()
            && delta.input_logprobs.is_empty()
            && self.end.is_none()
    }
}

/// The sum of a request's news.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
    pub(super) output_logprobs: Vec<TokenLogprobs>,
    pub(super) input_logprobs: Vec<TokenLogprobs>,
    pub(super) usage: Usage,
    pub(super) end: Option<End>,
}

impl Transcript {
    /// Adds news.
    pub(super) fn push(&mut self, news: News) {
        let News { delta, end } = news;
        self.text.push_str(&delta.text);
        self.tokens.extend(delta.tokens);
        self.output_logprobs.extend(delta.output_logprobs);
        self.input_logprobs.extend(delta.input_logprobs);
        self.usage = delta.usage;
        self.end = end;
    }
    /// All news in one.
    pub(super) fn into_news(self) -> News {
        let Self {
            text,
            tokens,
            output_logprobs,
            input_logprobs,
            usage,
            end,
        } = self;
        News {
            delta: Delta {
                text,
                tokens,
                output_logprobs,
                input_logprobs,
                usage,
            },
            end,
        }
    }
}
