//! Collects the events of one request into the answer so far.

use std::iter;
use std::sync::Arc;

use souffleur_base::error::RequestError;
use souffleur_request::{Delta, Event, FinishReason, OutputPiece, Timings, Usage};
use souffleur_state::output::push_piece;
use souffleur_state::sampling::TokenLogprobs;

/// Maximum number of log probabilities that a worker writes without yielding: with token texts, a few milliseconds.
const MAX_PIECE_ENTRIES: usize = 2048;
/// Approximate bytes of JSON per log probability.
const ENTRY_JSON_BYTES: usize = 40;
/// Approximate bytes of JSON per token id.
const TOKEN_JSON_BYTES: usize = 7;

/// The content of one event, whether it is a delta or the end.
#[derive(Debug, Default)]
pub(super) struct Update {
    pub(super) delta: Delta,
    pub(super) end: Option<TranscriptEnd>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TranscriptEnd {
    pub(super) reason: FinishReason,
    /// Seconds from the request's arrival at the engine to its end.
    pub(super) e2e_latency_s: f64,
    pub(super) prompt: Arc<[u32]>,
    pub(super) embedding: Option<Arc<[f32]>>,
    pub(super) timings: Option<Timings>,
    pub(super) accept_histogram: Arc<[u32]>,
}

impl Update {
    /// Splits an event into content and end; the error is the reason of a failed request.
    pub(super) fn of(event: Event) -> Result<Self, RequestError> {
        match event {
            Event::Delta(delta) => Ok(Self { delta, end: None }),
            Event::Finished(finished) | Event::Cancelled(finished) => {
                let finished = *finished;
                let end = TranscriptEnd {
                    reason: finished.reason,
                    e2e_latency_s: finished.e2e_latency_s,
                    prompt: finished.prompt,
                    embedding: finished.embedding,
                    timings: finished.timings,
                    accept_histogram: finished.accept_histogram,
                };
                Ok(Self {
                    delta: finished.delta,
                    end: Some(end),
                })
            }
            Event::Failed(error) => Err(error),
        }
    }

    pub(super) fn logprob_entries(&self) -> usize {
        entries(&self.delta.input_logprobs) + entries(&self.delta.output_logprobs)
    }

    /// Splits the content so that each piece has a bounded number of log probabilities. Text and end come last.
    pub(super) fn in_pieces(mut self, mut emit: impl FnMut(Self)) {
        if self.logprob_entries() > MAX_PIECE_ENTRIES {
            let usage = self.delta.usage;
            for input_logprobs in split(std::mem::take(&mut self.delta.input_logprobs)) {
                let delta = Delta {
                    input_logprobs,
                    usage,
                    ..Delta::default()
                };
                emit(Self { delta, end: None });
            }
            let mut tokens = std::mem::take(&mut self.delta.tokens).into_iter();
            for output_logprobs in split(std::mem::take(&mut self.delta.output_logprobs)) {
                let delta = Delta {
                    tokens: tokens.by_ref().take(output_logprobs.len()).collect(),
                    output_logprobs,
                    usage,
                    ..Delta::default()
                };
                emit(Self { delta, end: None });
            }
            self.delta.tokens = tokens.collect();
        }
        emit(self);
    }

    /// Returns whether the event has only log probabilities of the prompt, or nothing.
    pub(super) fn is_prompt_only(&self) -> bool {
        let delta = &self.delta;
        delta.text.is_empty()
            && delta.pieces.is_empty()
            && delta.tokens.is_empty()
            && delta.output_logprobs.is_empty()
            && self.end.is_none()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_prompt_only() && self.delta.input_logprobs.is_empty()
    }
}

fn entries(positions: &[TokenLogprobs]) -> usize {
    positions.iter().map(entries_of).sum()
}

fn entries_of(pos: &TokenLogprobs) -> usize {
    1 + pos.top.len() + pos.chosen.len()
}

/// Splits log probabilities into parts of at most [`MAX_PIECE_ENTRIES`], or of a single position.
fn split(positions: Vec<TokenLogprobs>) -> impl Iterator<Item = Vec<TokenLogprobs>> {
    let mut positions = positions.into_iter().peekable();
    iter::from_fn(move || {
        let mut part = vec![positions.next()?];
        let mut sum = entries(&part);
        while let Some(pos) = positions.next_if(|next| sum + entries_of(next) <= MAX_PIECE_ENTRIES)
        {
            sum += entries_of(&pos);
            part.push(pos);
        }
        Some(part)
    })
}

/// A request's deltas and end, joined.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub(super) text: String,
    pub(super) pieces: Vec<OutputPiece>,
    pub(super) tokens: Vec<u32>,
    pub(super) output_logprobs: Vec<TokenLogprobs>,
    pub(super) input_logprobs: Vec<TokenLogprobs>,
    pub(super) usage: Usage,
    pub(super) end: Option<TranscriptEnd>,
}

impl Transcript {
    pub(super) fn push(&mut self, update: Update) {
        let Update { delta, end } = update;
        self.text.push_str(&delta.text);
        for piece in delta.pieces {
            push_piece(&mut self.pieces, piece);
        }
        self.tokens.extend(delta.tokens);
        self.output_logprobs.extend(delta.output_logprobs);
        self.input_logprobs.extend(delta.input_logprobs);
        self.usage = delta.usage;
        self.end = end;
    }

    pub(super) fn json_bytes(&self) -> usize {
        let entries = entries(&self.input_logprobs) + entries(&self.output_logprobs);
        let pieces = self.pieces.iter().map(OutputPiece::bytes).sum::<usize>();
        self.text.len() + pieces + TOKEN_JSON_BYTES * self.tokens.len() + ENTRY_JSON_BYTES * entries
    }

    pub(super) fn into_update(self) -> Update {
        let Self {
            text,
            pieces,
            tokens,
            output_logprobs,
            input_logprobs,
            usage,
            end,
        } = self;
        Update {
            delta: Delta {
                text,
                pieces,
                tokens,
                output_logprobs,
                input_logprobs,
                usage,
            },
            end,
        }
    }
}
