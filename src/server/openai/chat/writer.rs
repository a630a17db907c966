//! Writing an answer.

use super::call::Call;
use super::choice::{Choice, ChoiceDetails, ChunkChoice, Message, MessageDelta};
use crate::request::Usage;
use crate::server::openai::logprobs::ChatLogprobs;
use crate::server::openai::matched_stop;
use crate::server::openai::wire::{Head, UsageReport};
use crate::server::spelling::Spelling;
use crate::server::sse::{Chunks, Render};
use crate::server::transcript::{News, Transcript};

/// Writes choices, whole or chunk by chunk.
pub(super) struct Writer {
    pub(super) head: Head,
    spelling: Spelling,
    usages: Vec<Usage>,
    logprobs: bool,
    return_token_ids: bool,
    include_usage: bool,
    continuous_usage: bool,
}

impl Writer {
    /// A writer for the answer to `call`.
    pub(super) fn new(call: &Call, head: Head, spelling: Spelling) -> Self {
        Self {
            head,
            spelling,
            usages: vec![Usage::default(); call.common.sampling.n as usize],
            logprobs: call.logprobs.is_some(),
            return_token_ids: call.common.return_token_ids,
            include_usage: call.common.include_usage,
            continuous_usage: call.common.continuous_usage,
        }
    }

    /// Writes a whole answer.
    pub(super) fn message(&mut self, index: usize, transcript: Transcript) -> Choice {
        let (content, details) = self.split(index, transcript.into_news());
        let message = Message {
            role: "assistant",
            content,
            refusal: None,
        };
        Choice {
            index,
            message,
            details,
        }
    }

    fn split(&mut self, index: usize, news: News) -> (String, ChoiceDetails) {
        let News { delta, end } = news;
        self.usages[index] = delta.usage;
        let logprobs = self
            .logprobs
            .then(|| ChatLogprobs::new(&delta.output_logprobs, &self.spelling));
        let details = ChoiceDetails {
            logprobs,
            finish_reason: end.as_ref().map(|end| end.reason.as_str()),
            matched_stop: end.and_then(|end| matched_stop(end.reason)),
            token_ids: self.return_token_ids.then_some(delta.tokens),
        };
        (delta.text, details)
    }

    /// The counts of one choice so far, for its chunk.
    fn usage_so_far(&self, index: usize) -> Option<UsageReport> {
        self.continuous_usage
            .then(|| UsageReport::of([self.usages[index]], 1))
    }

    /// The counts of all choices.
    pub(super) fn usage(&self) -> UsageReport {
        UsageReport::of(self.usages.iter().copied(), self.usages.len())
    }
}

impl Render for Writer {
    fn start(&mut self, out: &mut Chunks) {
        for index in 0..self.usages.len() {
            let delta = MessageDelta {
                role: Some("assistant"),
                content: Some(String::new()),
            };
            let choice = ChunkChoice {
                index,
                delta,
                details: ChoiceDetails::default(),
            };
            out.data(&self.head.with(vec![choice], None));
        }
    }

    fn news(&mut self, index: usize, news: News, out: &mut Chunks) {
        if news.is_empty() {
            return;
        }
        let (content, mut details) = self.split(index, news);
        let usage = self.usage_so_far(index);
        let content = (!content.is_empty()).then_some(content);
        let reason = details.finish_reason.take();
        let matched_stop = details.matched_stop.take();
        let has_tokens = details
            .token_ids
            .as_ref()
            .is_some_and(|tokens| !tokens.is_empty());
        if content.is_some()
            || has_tokens
            || details.logprobs.as_ref().is_some_and(|l| !l.is_empty())
        {
            let delta = MessageDelta {
                role: None,
                content,
            };
            out.data(&self.head.with(
                vec![ChunkChoice {
                    index,
                    delta,
                    details,
                }],
                usage,
            ));
        }
        if reason.is_some() {
            let details = ChoiceDetails {
                finish_reason: reason,
                matched_stop,
                ..ChoiceDetails::default()
            };
            let delta = MessageDelta::default();
            out.data(&self.head.with(
                vec![ChunkChoice {
                    index,
                    delta,
                    details,
                }],
                usage,
            ));
        }
    }

    fn end(&mut self, out: &mut Chunks) {
        if self.include_usage {
            out.data(
                &self
                    .head
                    .with(Vec::<ChunkChoice>::new(), Some(self.usage())),
            );
        }
    }
}
