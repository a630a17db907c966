//! Intake: admits, encodes and checks clients' calls and submits their requests, in time slices.
//!
//! Output streams wait while the Tokenizer handles new requests. So an arriving call is only queued. A pump reads calls
//! and submits requests for a millisecond at a time, and yields to the mailbox in between. Calls with encoded prompts
//! take turns.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use actix::{ActorFuture, ActorFutureExt, AsyncContext, Context, WrapFuture};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::call::WeightedPrompt;
use crate::messages::Generate;
use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;
use souffleur_metrics::request_lost;
use souffleur_request::sink::EventSink;
use souffleur_request::{CancelFlag, Event, FinishReason, Finished, GenerateRequest};
use souffleur_state::grammar::Grammar;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::submission::Submission;

use super::Tokenizer;
use super::call::{Arrival, Call, EncodeResult, NewCall, PromptState, cancelled};
use super::contain::{contain, panicked};
use super::inline::InlineBudget;
use super::lanes::{CallId, Job, Lanes, Turn};
use super::live::{ActiveRequest, AnswerOptions, Setup};
use super::prepare::{self, PreparedPrompt};

/// Time that the Tokenizer works on the intake before it returns to its mailbox.
const SLICE: Duration = Duration::from_millis(1);
/// Requests of one call that are submitted before the next call's.
const TURN_REQUESTS: usize = 16;
/// Prompts of more weight are freed on another thread.
const MAX_FREED_INLINE: usize = 64 << 10;

/// The calls that have arrived and have requests left to submit.
pub(super) struct Intake {
    /// The first call may be partly read.
    arrived: VecDeque<NewCall>,
    calls: FxHashMap<CallId, Call>,
    /// The calls whose next request can be submitted.
    ready: VecDeque<CallId>,
    requests: FxHashMap<RequestId, CancelFlag>,
    lanes: Lanes,
    inline: InlineBudget,
    last_call: CallId,
    is_pumping: bool,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self {
            arrived: VecDeque::new(),
            calls: FxHashMap::default(),
            ready: VecDeque::new(),
            requests: FxHashMap::default(),
            lanes: Lanes::new(),
            inline: InlineBudget::new(),
            last_call: CallId(0),
            is_pumping: false,
        }
    }

    /// Cancels all requests in the intake: each ends when its turn comes.
    pub(super) fn cancel_all(&self) {
        self.requests.values().for_each(CancelFlag::raise);
        self.arrived.iter().for_each(NewCall::cancel_unread);
    }

    /// Frees the ids of requests that a panic has dropped.
    fn forget_lost_requests(&mut self) {
        let arrived = self.arrived.iter().flat_map(|call| &call.arrivals);
        let kept = arrived.chain(self.calls.values().flat_map(|call| &call.arrivals));
        let kept: FxHashSet<&RequestId> = kept.map(|arrival| &arrival.request.rid).collect();
        self.requests.retain(|rid, _| kept.contains(rid));
    }

    /// The requests that were not submitted, those of the oldest call first, with the times of their calls.
    pub(super) fn rids(&self) -> impl Iterator<Item = (&RequestId, Instant)> {
        let mut opened: Vec<&CallId> = self.calls.keys().collect();
        opened.sort_unstable();
        let opened = opened.into_iter().flat_map(move |id| self.calls[id].rids());
        opened.chain(self.arrived.iter().flat_map(NewCall::rids))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.calls.is_empty()
    }

    /// Puts a call back, and queues it if its next request can be submitted.
    fn put_back(&mut self, id: CallId, mut call: Call) {
        call.is_queued = call.can_submit();
        if call.is_queued {
            self.ready.push_back(id);
        }
        self.calls.insert(id, call);
    }
}

impl Tokenizer {
    pub(super) fn queue_call(&mut self, generate: Generate, ctx: &mut Context<Self>) {
        self.estate.intake.arrived.push_back(NewCall::new(generate));
        self.pump(ctx);
    }

    /// Continues the intake of a dead Tokenizer, whose threads' results are lost.
    pub(super) fn continue_intake(&mut self, ctx: &mut Context<Self>) {
        self.estate.intake.is_pumping = false;
        self.estate.intake.lanes.repeat_running();
        self.estate.intake.forget_lost_requests();
        self.run_lanes(ctx);
        self.pump(ctx);
    }

    fn pump(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.estate.intake.is_pumping, true) {
            ctx.spawn(Pump);
        }
    }

    /// Reads calls and submits requests until all calls wait or the slice is over. Returns whether the slice is over.
    fn work(&mut self, ctx: &mut Context<Self>) -> bool {
        let began = Instant::now();
        let is_over = || began.elapsed() >= SLICE;
        loop {
            if let Some(call) = self.estate.intake.arrived.pop_front() {
                self.read(call, is_over, ctx);
            } else if let Some(id) = self.estate.intake.ready.pop_front() {
                self.submit_from(id, is_over);
            } else {
                self.estate.notify_if_idle();
                return false;
            }
            if is_over() {
                return true;
            }
        }
    }

    /// Reads a call: its requests are checked and take permits if they have none.
    fn read(&mut self, mut call: NewCall, is_over: impl Fn() -> bool, ctx: &mut Context<Self>) {
        while let Some((index, asked)) = call.next() {
            let mut arrival = Arrival::new(asked, call.prompts.index_of(index));
            self.metrics.received(arrival.request.is_streaming);
            let estimated_tokens = call.prompts.estimated_tokens(index);
            let admitted = self.admit(&mut arrival, estimated_tokens).and_then(|()| {
                let (checked, request) = (&mut call.checked, &arrival.request);
                let check = || checked.check(request, &self.settings);
                contain("the check of a request", check).unwrap_or_else(|| Err(panicked()))
            });
            match admitted {
                Err(error) => self.refuse(arrival, error),
                Ok(()) => {
                    let (rid, cancel) = (arrival.request.rid.clone(), arrival.cancel.clone());
                    self.estate.intake.requests.insert(rid, cancel);
                    call.arrivals.push_back(arrival);
                }
            }
            if is_over() {
                return self.estate.intake.arrived.push_front(call);
            }
        }
        self.open(call, ctx);
    }

    fn admit(&self, arrival: &mut Arrival, estimated_tokens: usize) -> Result<(), RequestError> {
        let rid = &arrival.request.rid;
        if self.estate.intakes.contains_key(rid) || self.estate.intake.requests.contains_key(rid) {
            return Err(RequestError::DuplicateRequest(rid.as_str().to_owned()));
        }
        let admission = &self.settings.admission;
        arrival.sink.admit(admission, estimated_tokens)
    }

    fn open(&mut self, call: NewCall, ctx: &mut Context<Self>) {
        let arrivals = call.arrivals;
        self.estate.intake.last_call.0 += 1;
        let id = self.estate.intake.last_call;
        let mut prompts = call.prompts.into_distinct();
        if self.settings.room <= 1 {
            prompts.iter_mut().for_each(WeightedPrompt::drop_prediction);
        }
        let prompts = self.place(id, prompts, &arrivals);
        if arrivals.is_empty() {
            return;
        }
        self.estate
            .intake
            .put_back(id, Call::new(arrivals, prompts, call.since));
        self.run_lanes(ctx);
    }

    /// Refuses prompts that cannot fit, and puts texts that are long or exceed the inline budget into the lanes.
    fn place(
        &mut self,
        id: CallId,
        prompts: Vec<WeightedPrompt>,
        arrivals: &VecDeque<Arrival>,
    ) -> Vec<PromptState> {
        let texts = prompts.iter().filter(|prompt| prepare::is_text(prompt));
        let call_bytes = texts.map(|prompt| prompt.weight).sum();
        let is_inline = call_bytes == 0 || self.estate.intake.inline.take(call_bytes);
        let mut cancels: Vec<Vec<CancelFlag>> = vec![Vec::new(); prompts.len()];
        for arrival in arrivals {
            cancels[arrival.prompt_index].push(arrival.cancel.clone());
        }
        let places = prompts.into_iter().zip(cancels).enumerate();
        let place = |(index, (weighed, cancels)): (usize, (WeightedPrompt, Vec<CancelFlag>))| {
            let oversized = prepare::refuse_oversized(&weighed.prompt, &self.settings).err();
            if let Some(error) = oversized {
                free(weighed);
                return PromptState::Encoded(Err(error));
            }
            if cancels.is_empty() {
                free(weighed);
                return PromptState::Waiting;
            }
            let is_short = is_inline || !prepare::is_text(&weighed);
            if weighed.form.is_constrained() {
                self.metrics.grammars().wait(cancels.len());
            } else if is_short {
                return PromptState::NotEncoded(weighed);
            }
            self.estate.intake.lanes.add(
                id,
                Job {
                    index,
                    prompt: weighed.prompt,
                    form: weighed.form,
                    weight: weighed.weight,
                    cancels,
                },
            );
            PromptState::Waiting
        };
        places.map(place).collect()
    }

    fn run_lanes(&mut self, ctx: &mut Context<Self>) {
        while let Some(turn) = self.estate.intake.lanes.next() {
            let Turn { lane, call, jobs } = turn;
            let indices: Vec<usize> = jobs.iter().map(|job| job.index).collect();
            let settings = self.settings.clone();
            let n_waiting: usize = jobs.iter().map(Job::n_grammars).sum();
            let encoded_bytes = self.metrics.encoded_bytes();
            let grammars = self.metrics.grammars().clone();
            let encode = move |job: Job| {
                if job.is_cancelled() {
                    Err(cancelled())
                } else {
                    encoded_bytes.increment(job.weight as u64);
                    let is_cancelled = || job.is_cancelled();
                    let encode = || {
                        let (prompt, form) = (job.prompt.clone(), &job.form);
                        prepare::prepare(prompt, form, &settings, &grammars, &is_cancelled)
                    };
                    let encoded = contain("the encoding of a prompt", encode);
                    encoded.unwrap_or_else(|| Err(panicked()))
                }
            };
            let encode_all = move || jobs.into_iter().map(encode).collect::<Vec<EncodeResult>>();
            let encoded = actix_rt::task::spawn_blocking(encode_all);
            let encoded = encoded
                .into_actor(self)
                .map(move |encoded, tokenizer, ctx| {
                    let failed = || {
                        RequestError::Interrupted(
                            "tokenizing failed: its thread panicked, which is a bug of this engine (please report it \
                             with the server's log)"
                                .to_owned(),
                        )
                    };
                    let encoded = encoded.unwrap_or_else(|_| vec![Err(failed()); indices.len()]);
                    let encoded = indices.into_iter().zip(encoded);
                    tokenizer.metrics.grammars().waited(n_waiting);
                    tokenizer.take_encoded(call, encoded);
                    tokenizer.estate.intake.lanes.finished(lane);
                    tokenizer.run_lanes(ctx);
                    tokenizer.pump(ctx);
                });
            ctx.spawn(encoded);
        }
    }

    fn take_encoded(&mut self, id: CallId, encoded: impl Iterator<Item = (usize, EncodeResult)>) {
        let Some(call) = self.estate.intake.calls.get_mut(&id) else {
            return;
        };
        for (index, encoded) in encoded {
            call.prompts[index] = PromptState::Encoded(encoded);
        }
        if !call.is_queued && call.can_submit() {
            call.is_queued = true;
            self.estate.intake.ready.push_back(id);
        }
    }

    fn submit_from(&mut self, id: CallId, is_over: impl Fn() -> bool) {
        let Some(mut call) = self.estate.intake.calls.remove(&id) else {
            return;
        };
        for _ in 0..TURN_REQUESTS {
            let Some(arrival) = call.next(&self.settings, &self.metrics) else {
                break;
            };
            self.estate.intake.requests.remove(&arrival.request.rid);
            self.finish_intake(&mut call, arrival);
            if is_over() {
                break;
            }
        }
        if !call.arrivals.is_empty() {
            self.estate.intake.put_back(id, call);
        }
    }

    fn finish_intake(&mut self, call: &mut Call, mut arrival: Arrival) {
        if arrival.cancel.is_raised() {
            let is_streaming = arrival.request.is_streaming;
            self.metrics.cancelled_in_intake(is_streaming);
            return arrival.sink.finish(Event::Cancelled(Box::new(Finished {
                delta: Default::default(),
                reason: FinishReason::Abort,
                e2e_latency_s: 0.0,
                timings: None,
                prompt: Arc::default(),
                embedding: None,
                accept_histogram: Arc::default(),
            })));
        }
        let check = || call.check_and_clip(&mut arrival, &self.settings);
        let checked = contain("the check of a prompt", check).unwrap_or_else(|| Err(panicked()));
        match checked {
            Err(error) => self.refuse(arrival, error),
            Ok((prepared, sampling)) => {
                let options = AnswerOptions {
                    stops: call.stops(&sampling.stop),
                    backlog_bytes: call.backlog_bytes(&self.settings),
                    parsing: arrival.request.parsing.take(),
                    has_constraint: arrival.request.constraint.is_some(),
                    has_prediction: arrival.request.prediction.is_some(),
                    start: prepared.start,
                };
                self.submit(arrival, prepared, sampling, options);
            }
        }
    }

    fn refuse(&mut self, arrival: Arrival, error: RequestError) {
        self.refuse_sink(arrival.sink, error);
    }

    fn refuse_sink(&mut self, sink: EventSink, error: RequestError) {
        // A fault in the request's own work.
        let is_fault = matches!(
            error,
            RequestError::Interrupted(_) | RequestError::Poison(_)
        );
        if is_fault && !sink.is_probe() {
            request_lost();
        }
        self.metrics.failed(error.code());
        sink.finish(Event::Failed(error));
    }

    fn submit(
        &mut self,
        arrival: Arrival,
        prepared: PreparedPrompt,
        sampling: SamplingParams,
        options: AnswerOptions,
    ) {
        let Arrival {
            request,
            sink,
            cancel,
            ..
        } = arrival;
        let intake = self.estate.docket.next_intake();
        if prepared.grammar.is_some() {
            self.metrics.grammars().submitted();
        }
        let longest = prepared.tokens.len() + sampling.max_new_tokens as usize;
        let is_long = self
            .settings
            .long_above
            .is_some_and(|above| longest > above);
        let has_drafts = sampling.speculative_num_draft_tokens.is_some();
        let submission = Submission {
            rid: request.rid.clone(),
            intake: if sink.is_probe() {
                intake.of_probe()
            } else {
                intake
            },
            prompt: prepared.tokens,
            opening: opening(prepared.grammar.as_deref(), &request, &sampling),
            anchors: prepared.anchors,
            grammar: prepared.grammar,
            bypasses_cache: prepared.prompt_embeds.is_some(),
            vectors: prepared.prompt_embeds,
            images: prepared.images,
            pooling: request.pooling,
            namespace: request.namespace.with_long_rotation(is_long),
            sampling: Arc::new(sampling),
            logprobs: request.logprobs.map(Arc::new),
            priority: request.priority,
            cancel,
            submitted_s: 0.0,
            timeouts: request.timeouts.tightened(self.settings.timeouts),
            draft_texts: if has_drafts {
                prepared.draft_texts
            } else {
                Arc::default()
            },
        };
        let now_s = self.estate.now_s();
        if self.estate.quarantine.refuses(&submission, now_s) {
            self.metrics.failed(quarantined().code());
            return sink.finish(Event::Failed(quarantined()));
        }
        let setup = Setup::new(&submission, options);
        let text = || setup.begin_text(&self.settings);
        let Some(text) = contain("the start of an output's text", text) else {
            return self.refuse_sink(sink, panicked());
        };
        let active = ActiveRequest::new(&submission, (sink, request.is_streaming), (setup, text));
        self.estate.intakes.insert(request.rid, submission.intake);
        self.estate.active.insert(submission.intake, active);
        self.enter(submission, now_s);
    }
}

fn quarantined() -> RequestError {
    RequestError::Interrupted(
        "an identical request crashed the engine's actors repeatedly, so this one is refused: wait ten minutes or \
         change it, and please report the bug with the server's log"
            .to_owned(),
    )
}

/// Works on the intake, one time slice after another, until the rest waits for encoded prompts.
struct Pump;

impl ActorFuture<Tokenizer> for Pump {
    type Output = ();

    fn poll(
        self: std::pin::Pin<&mut Self>,
        tokenizer: &mut Tokenizer,
        ctx: &mut Context<Tokenizer>,
        task: &mut TaskContext<'_>,
    ) -> Poll<()> {
        if tokenizer.work(ctx) {
            // The pump is polled again after the mailbox.
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        tokenizer.estate.intake.is_pumping = false;
        Poll::Ready(())
    }
}

/// The first output tokens that the grammar forces, which need no sampling. Empty if the request wants log
/// probabilities, which only sampled tokens have, or if the forced tokens would end the output.
fn opening(
    grammar: Option<&dyn Grammar>,
    request: &GenerateRequest,
    sampling: &SamplingParams,
) -> Arc<[u32]> {
    let opening = grammar.map_or(&[][..], Grammar::opening);
    let is_end = |token: &u32| sampling.stop_token_ids.contains(token);
    let fits = opening.len() < sampling.max_new_tokens as usize && !opening.iter().any(is_end);
    if fits && request.logprobs.is_none() {
        opening.into()
    } else {
        Arc::default()
    }
}

/// Frees a prompt, a large one on another thread: streams should not wait while millions of JSON values are freed.
fn free(weighed: WeightedPrompt) {
    if weighed.weight > MAX_FREED_INLINE {
        drop(actix_rt::task::spawn_blocking(move || drop(weighed)));
    }
}
