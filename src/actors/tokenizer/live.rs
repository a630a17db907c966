//! One request in flight in the Tokenizer: its decoded text, its token counts, its event sink.

use std::sync::Arc;
use std::time::Instant;

use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;
use souffleur_metrics::{RequestMetrics, request_lost};
use souffleur_request::sink::{Delivery, EventSink};
use souffleur_request::{Delta, Event, FinishReason, Finished, OutputParsing, Timings, Usage};
use souffleur_state::detok::StopTable;
use souffleur_state::output::{OutputEnding, OutputStart};
use souffleur_state::sampling::SamplingParams;
use souffleur_state::sampling::{RowLogprobs, TokenLogprobs};
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::scheduler::submission::Submission;

use super::TokenizerSettings;
use super::drafts::AcceptHistogram;
use super::input_ids::InputIds;
use super::output::{OutputSetup, OutputText};
use super::prepare::no_embeddings;

/// Prompt tokens that precede the first output token when it is decoded, so that its leading space is right.
const CONTEXT_TOKENS: usize = 5;

pub(super) enum Progress {
    Continues,
    /// The terminal event was sent.
    Ended,
    /// A stop string or the only allowed tool call was completed, and the terminal event was sent; the scheduler does
    /// not know yet.
    Stopped {
        /// Number of output tokens up to the end of the stop string or call.
        kept: usize,
    },
    /// The client is gone or too slow; the scheduler does not know yet.
    Abandoned,
}

pub(super) struct AnswerOptions {
    pub(super) stops: Arc<StopTable>,
    pub(super) backlog_bytes: usize,
    pub(super) parsing: Option<OutputParsing>,
    /// The answer has a constraint other than that of its tools.
    pub(super) has_constraint: bool,
    pub(super) has_prediction: bool,
    /// The part of the answer (reasoning, content) in which the output starts.
    pub(super) start: OutputStart,
}

/// The inputs of a request's text.
pub(super) struct Setup {
    prompt: Arc<[u32]>,
    sampling: Arc<SamplingParams>,
    options: AnswerOptions,
}

impl Setup {
    pub(super) fn new(submission: &Submission, options: AnswerOptions) -> Self {
        Self {
            prompt: submission.prompt.clone(),
            sampling: submission.sampling.clone(),
            options,
        }
    }

    pub(super) fn begin_text(&self, settings: &TokenizerSettings) -> OutputText {
        let options = &self.options;
        let setup = OutputSetup {
            sampling: &self.sampling,
            stops: options.stops.clone(),
            context: &self.prompt[self.prompt.len().saturating_sub(CONTEXT_TOKENS)..],
            parsing: options.parsing.clone(),
            has_constraint: options.has_constraint,
            start: options.start,
        };
        OutputText::new(setup, settings.text.as_deref(), &settings.formats)
    }
}

pub(super) struct ActiveRequest {
    rid: RequestId,
    setup: Setup,
    /// `None` after the terminal event.
    sink: Option<EventSink>,
    output: OutputText,
    /// Output tokens whose text, log probabilities and counts were handed to the sink.
    n_passed: usize,
    usage: Usage,
    accepted: AcceptHistogram,
    wants_logprobs: bool,
    /// The request wants an embedding and no other output.
    wants_embedding: bool,
    embedding: Option<Arc<[f32]>>,
    /// The first token of the requested prompt range, which has no log probability; `None` once delivered.
    first_input: Option<TokenLogprobs>,
    input_ids: InputIds,
    is_streaming: bool,
    is_stalled: bool,
    started: Instant,
    admitted: Option<Instant>,
    last_token: Option<Instant>,
    first_token: Option<Instant>,
}

impl ActiveRequest {
    pub(super) fn new(
        submission: &Submission,
        (sink, is_streaming): (EventSink, bool),
        (setup, output): (Setup, OutputText),
    ) -> Self {
        let prompt = &submission.prompt;
        let input_start = submission.logprobs.as_ref().and_then(|wish| wish.start);
        let first_input = input_start.map(|start| TokenLogprobs {
            token: prompt[start as usize],
            ..TokenLogprobs::default()
        });
        let (accepted, usage) = AcceptHistogram::of(submission, setup.options.has_prediction);
        Self {
            rid: submission.rid.clone(),
            setup,
            sink: Some(sink),
            output,
            n_passed: 0,
            usage,
            accepted,
            wants_logprobs: submission.logprobs.is_some(),
            wants_embedding: submission.pooling.is_some(),
            embedding: None,
            first_input,
            input_ids: InputIds::of(submission),
            is_streaming,
            is_stalled: false,
            started: Instant::now(),
            admitted: None,
            last_token: None,
            first_token: None,
        }
    }

    pub(super) fn n_passed(&self) -> usize {
        self.n_passed
    }

    /// Makes the text anew, as it was before the last call of [`Self::advance`]. `told` are the request's output tokens.
    pub(super) fn begin_text_again(&mut self, told: &[u32], settings: &TokenizerSettings) {
        self.output = self.setup.begin_text(settings);
        if let Some(text) = settings.text.as_deref() {
            for &token in told.iter().take(self.n_passed) {
                let _ = self.output.push(token, text);
            }
            self.output.take_into(&mut Delta::default());
        }
    }

    pub(super) fn rid(&self) -> &RequestId {
        &self.rid
    }

    pub(super) fn admitted(&mut self, at: Instant) {
        self.admitted = Some(at);
    }

    pub(super) fn into_rid(self) -> RequestId {
        self.rid
    }

    /// Decodes tokens and sends them as a delta, with the terminal event if the request has ended. If this panics, only
    /// the text has changed.
    pub(super) fn advance(
        &mut self,
        update: &mut RequestTokens,
        settings: &TokenizerSettings,
        metrics: &RequestMetrics,
    ) -> Progress {
        let mut delta = Delta::default();
        let stop = self.decode(&update.tokens, update.end.as_deref(), settings);
        self.usage.reasoning_tokens = self.output.reasoning_tokens();
        let ending = match (&stop, update.end.as_deref()) {
            (Some(_), _) => Some(OutputEnding::Whole),
            (None, Some(RequestEnd::Finished(reason))) => Some(ending_of(reason)),
            (None, Some(RequestEnd::Failed(_)) | None) => None,
        };
        match ending {
            Some(ending) => self.output.finish_into(&mut delta, ending),
            None => self.output.take_into(&mut delta),
        }
        self.take(update, &mut delta, stop.as_ref(), metrics);
        if let Some(stop) = stop {
            self.finish(delta, stop.reason, metrics);
            return Progress::Stopped { kept: stop.kept };
        }
        match update.end.take().map(|end| *end) {
            None => self.send(delta, metrics),
            Some(RequestEnd::Finished(reason)) if self.has_result(&reason) => {
                self.finish(delta, reason, metrics);
                Progress::Ended
            }
            Some(RequestEnd::Finished(_)) => {
                self.fail(no_embeddings(), metrics);
                Progress::Ended
            }
            Some(RequestEnd::Failed(error)) => {
                self.fail(error, metrics);
                Progress::Ended
            }
        }
    }

    /// Moves tokens and log probabilities into the delta, and counts them.
    fn take(
        &mut self,
        update: &mut RequestTokens,
        delta: &mut Delta,
        stop: Option<&Stop>,
        metrics: &RequestMetrics,
    ) {
        let logprobs = update.logprobs.take();
        if let Some(embedding) = logprobs.as_ref().and_then(|read| read.embedding.clone()) {
            self.embedding = Some(embedding);
        }
        self.usage.cached_tokens = update.cached_tokens;
        self.usage.loaded_tokens = update.loaded_tokens;
        self.usage.num_retractions = update.num_retractions;
        let kept_now = stop.map_or(update.tokens.len(), |stop| stop.kept_now);
        if self.n_passed > 0 {
            let n_kept = kept_now as u32;
            self.accepted.count(update.drafts, n_kept, &mut self.usage);
        }
        let tokens = std::mem::take(&mut update.tokens);
        self.time_tokens(tokens.len(), metrics);
        self.n_passed += tokens.len();
        self.usage.completion_tokens += kept_now as u32;
        delta.tokens = tokens.into_vec();
        delta.tokens.truncate(kept_now);
        self.add_logprobs(delta, logprobs, kept_now);
        delta.usage = self.usage;
    }

    /// False if the request wants an embedding but the executor returned none.
    fn has_result(&self, reason: &FinishReason) -> bool {
        !self.wants_embedding || self.embedding.is_some() || *reason == FinishReason::Abort
    }

    /// Adds tokens to the text, except a stop token that ended the request, unless `no_stop_trim` is set.
    fn decode(
        &mut self,
        tokens: &[u32],
        end: Option<&RequestEnd>,
        settings: &TokenizerSettings,
    ) -> Option<Stop> {
        let text = settings.text.as_deref()?;
        let stop_token = match end {
            Some(RequestEnd::Finished(FinishReason::StopToken(token)))
                if !self.setup.sampling.no_stop_trim =>
            {
                Some(*token)
            }
            _ => None,
        };
        for (index, &token) in tokens.iter().enumerate() {
            let kept_now = index + 1;
            if kept_now == tokens.len() && stop_token == Some(token) {
                self.output.push_without_text(token);
            } else if let Some(found) = self.output.push(token, text) {
                return Some(Stop {
                    kept: found.output_tokens_kept,
                    kept_now,
                    reason: FinishReason::StopString(found.matched),
                });
            } else if let Some(kept) = self.output.wants_end() {
                return Some(Stop {
                    kept,
                    kept_now,
                    reason: FinishReason::Grammar,
                });
            }
        }
        None
    }

    fn add_logprobs(
        &mut self,
        delta: &mut Delta,
        logprobs: Option<Box<RowLogprobs>>,
        kept_now: usize,
    ) {
        if !self.wants_logprobs {
            return;
        }
        let logprobs = logprobs.map(|logprobs| *logprobs).unwrap_or_default();
        delta.input_logprobs.extend(self.first_input.take());
        delta.input_logprobs.extend(logprobs.input);
        self.input_ids.put_into(&mut delta.input_logprobs);
        delta.output_logprobs = logprobs.output;
        delta.output_logprobs.truncate(kept_now);
    }

    fn time_tokens(&mut self, n_tokens: usize, metrics: &RequestMetrics) {
        if n_tokens == 0 {
            return;
        }
        let now = Instant::now();
        match self.last_token {
            None => {
                let seconds = (now - self.started).as_secs_f64();
                metrics.first_token(self.is_streaming, seconds);
                self.first_token = Some(now);
            }
            Some(last) => metrics.inter_token((now - last).as_secs_f64(), n_tokens),
        }
        self.last_token = Some(now);
    }

    fn send(&mut self, delta: Delta, metrics: &RequestMetrics) -> Progress {
        let Some(sink) = &mut self.sink else {
            return Progress::Ended;
        };
        match sink.send(delta) {
            Delivery::Sent => {
                self.is_stalled = false;
                Progress::Continues
            }
            Delivery::Waiting { backlog_bytes } => {
                if !self.is_stalled {
                    metrics.client_stalled();
                }
                self.is_stalled = true;
                let limit_bytes = self.setup.options.backlog_bytes;
                if backlog_bytes <= limit_bytes {
                    return Progress::Continues;
                }
                self.fail(
                    RequestError::SlowClient {
                        backlog_bytes,
                        limit_bytes,
                    },
                    metrics,
                );
                Progress::Abandoned
            }
            Delivery::Gone => {
                let delta = Delta {
                    usage: self.usage,
                    ..Delta::default()
                };
                self.finish(delta, FinishReason::Abort, metrics);
                Progress::Abandoned
            }
        }
    }

    fn finish(&mut self, delta: Delta, reason: FinishReason, metrics: &RequestMetrics) {
        let is_abort = reason == FinishReason::Abort;
        let finished = Box::new(self.finished(delta, reason));
        metrics.finished(self.is_streaming, &self.usage, finished.e2e_latency_s);
        if let (Some(first), Some(last)) = (self.first_token, self.last_token) {
            let seconds = (last - first).as_secs_f64();
            metrics.decoded(self.is_streaming, seconds, self.usage.completion_tokens);
        }
        if is_abort {
            metrics.aborted();
            self.terminate(Event::Cancelled(finished));
        } else {
            self.terminate(Event::Finished(finished));
        }
    }

    fn finished(&self, delta: Delta, reason: FinishReason) -> Finished {
        let ended = Instant::now();
        let timings = Timings {
            queued: self.started,
            admitted: self.admitted,
            first_token: self.first_token,
            ended,
        };
        Finished {
            delta,
            reason,
            e2e_latency_s: (ended - self.started).as_secs_f64(),
            timings: Some(timings),
            prompt: self.setup.prompt.clone(),
            embedding: self.embedding.clone(),
            accept_histogram: self.accepted.counts(),
        }
    }

    pub(super) fn fail(&mut self, error: RequestError, metrics: &RequestMetrics) {
        let is_lost = matches!(
            error,
            RequestError::Interrupted(_)
                | RequestError::EngineDown(_)
                | RequestError::Step(_)
                | RequestError::Poison(_)
        );
        let sink = self.sink.as_ref();
        if is_lost && sink.is_some_and(|sink| !sink.is_probe()) {
            request_lost();
        }
        metrics.failed(error.code());
        self.terminate(Event::Failed(error));
    }

    fn terminate(&mut self, event: Event) {
        if let Some(sink) = self.sink.take() {
            sink.finish(event);
        }
    }
}

fn ending_of(reason: &FinishReason) -> OutputEnding {
    match reason {
        FinishReason::Length { .. } | FinishReason::Abort => OutputEnding::Cut,
        _ => OutputEnding::Whole,
    }
}

/// The end of an output inside a batch of tokens, at a stop string or after its only allowed tool call.
struct Stop {
    kept: usize,
    /// Number of kept tokens of the batch.
    kept_now: usize,
    reason: FinishReason,
}
