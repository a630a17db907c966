//! Writes a chat completion, whole or as chunks.

use super::call::Call;
use super::choice::{Choice, ChoiceDetails, ChunkChoice, MessageDelta};
use super::pieces::{Pieces, ReasoningStyle};
use crate::call::sample_id;
use crate::config::ReasoningField;
use crate::openai::answer::WriteChoices;
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::matched_stop;
use crate::openai::wire::{Extension, Head, Matched, Response, UsageReport};
use crate::spelling::Spelling;
use crate::sse::{Chunks, Render};
use crate::transcript::{Transcript, Update};
use souffleur_request::{FinishReason, Usage};
use souffleur_state::sampling::TokenLogprobs;

pub(super) struct Writer {
    pub(super) head: Head,
    spelling: Spelling,
    usages: Vec<Usage>,
    pieces: Vec<Pieces>,
    logprobs: bool,
    return_token_ids: bool,
    return_cached_tokens_details: bool,
    include_usage: bool,
    continuous_usage: bool,
}

impl Writer {
    pub(super) fn new(
        call: &Call,
        head: Head,
        spelling: Spelling,
        reasoning_field: ReasoningField,
    ) -> Self {
        let common = &call.common;
        let n = common.sampling.n;
        let style = ReasoningStyle {
            reasoning: call.reasoning,
            field: reasoning_field,
        };
        let pieces = |index| Pieces::new(sample_id(&common.id, index, n), style);
        Self {
            head,
            spelling,
            usages: vec![Usage::default(); n as usize],
            pieces: (0..n).map(pieces).collect(),
            logprobs: call.logprobs.is_some(),
            return_token_ids: common.return_token_ids,
            return_cached_tokens_details: common.return_cached_tokens_details,
            include_usage: common.include_usage,
            continuous_usage: common.continuous_usage,
        }
    }

    fn details(&self, positions: &[TokenLogprobs], tokens: Vec<u32>) -> ChoiceDetails {
        let logprobs = self.logprobs;
        ChoiceDetails {
            logprobs: logprobs.then(|| ChatLogprobs::new(positions, &self.spelling)),
            token_ids: self.return_token_ids.then_some(tokens),
            ..ChoiceDetails::default()
        }
    }

    /// The finish reason: `tool_calls` if the choice ended by itself and all calls that were sent are complete. With
    /// another reason, clients do not execute a malformed call whose deltas were already sent.
    fn finish(
        &self,
        index: usize,
        reason: FinishReason,
    ) -> (Option<&'static str>, Option<Matched>) {
        let name = reason.as_str();
        if name == "stop" && self.pieces[index].has_complete_calls() {
            (Some("tool_calls"), None)
        } else {
            (Some(name), matched_stop(reason))
        }
    }

    fn extension(&self) -> Option<Extension> {
        self.return_cached_tokens_details
            .then(|| Extension::of_cached_tokens(&self.usages))
    }

    fn usage_so_far(&self, index: usize) -> Option<UsageReport> {
        self.continuous_usage
            .then(|| UsageReport::of([self.usages[index]], 1))
    }

    pub(super) fn usage(&self) -> UsageReport {
        UsageReport::of(self.usages.iter().copied(), self.usages.len())
    }

    fn chunk(&self, choice: ChunkChoice, out: &mut Chunks) {
        let usage = self.usage_so_far(choice.index);
        out.data(&self.head.with(vec![choice], usage));
    }
}

impl ChoiceDetails {
    /// Returns whether there are log probabilities or token ids, which no later chunk repeats.
    fn has_token_data(&self) -> bool {
        let has_logprobs = self.logprobs.as_ref().is_some_and(|list| !list.is_empty());
        has_logprobs || self.token_ids.as_ref().is_some_and(|ids| !ids.is_empty())
    }
}

impl WriteChoices for Writer {
    type Choice = Choice;

    fn whole_choice(&mut self, index: usize, transcript: Transcript) -> Choice {
        let Update { delta, end } = transcript.into_update();
        self.usages[index] = delta.usage;
        let message = self.pieces[index].message(delta.text, delta.pieces);
        let mut details = self.details(&delta.output_logprobs, delta.tokens);
        if let Some(end) = end {
            (details.finish_reason, details.matched_stop) = self.finish(index, end.reason);
        }
        Choice {
            index,
            message,
            details,
        }
    }

    fn whole_answer(&self, choices: Vec<Choice>) -> Response<'_, Choice> {
        let whole = self.head.with(choices, Some(self.usage()));
        whole.extended(self.extension())
    }
}

impl Render for Writer {
    fn start(&mut self, out: &mut Chunks) {
        for index in 0..self.usages.len() {
            let delta = MessageDelta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..MessageDelta::default()
            };
            let details = ChoiceDetails::default();
            let choice = ChunkChoice {
                index,
                delta,
                details,
            };
            out.data(&self.head.with(vec![choice], None));
        }
    }

    fn update(&mut self, index: usize, update: Update, out: &mut Chunks) {
        if update.is_empty() {
            return;
        }
        let Update { delta, end } = update;
        self.usages[index] = delta.usage;
        let mut deltas = self.pieces[index].deltas(delta.text, delta.pieces);
        if end.is_some() {
            self.pieces[index].add_held(&mut deltas);
        }
        let details = self.details(&delta.output_logprobs, delta.tokens);
        // The data of tokens whose text is held back is sent with an empty delta.
        if deltas.is_empty() && details.has_token_data() {
            deltas.push(MessageDelta::default());
        }
        let mut details = Some(details);
        for delta in deltas {
            let details = details.take().unwrap_or_default();
            let choice = ChunkChoice {
                index,
                delta,
                details,
            };
            self.chunk(choice, out);
        }
        if let Some(end) = end {
            let (finish_reason, matched_stop) = self.finish(index, end.reason);
            let details = ChoiceDetails {
                finish_reason,
                matched_stop,
                ..ChoiceDetails::default()
            };
            let delta = MessageDelta::default();
            let choice = ChunkChoice {
                index,
                delta,
                details,
            };
            self.chunk(choice, out);
        }
    }

    fn end(&mut self, out: &mut Chunks) {
        if let Some(extension) = self.extension() {
            let chunk = self.head.with(Vec::<ChunkChoice>::new(), None);
            out.data(&chunk.extended(Some(extension)));
        }
        if self.include_usage {
            let choices = Vec::<ChunkChoice>::new();
            out.data(&self.head.with(choices, Some(self.usage())));
        }
    }
}
