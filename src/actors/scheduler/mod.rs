//! The Scheduler actor: owns the queue and the running batch, and plans every step.
//!
//! The handlers call [`souffleur_state::scheduler::Scheduler`], which decides, and send the results.

mod chaos;
mod control;
pub mod steps;
mod store;

use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler, Recipient, ResponseFuture};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{
    CancelAll, CancelRequest, Drain, EngineView, GetLoad, GetStats, GetView, HostSettings,
    PlanStep, PrefixesProbed, ProbePrefixes, ReservePages, ResumeRequests, RunStep, StepDone,
    StepPlanned, StopFound, StoreOrders, Submit, TokensReady, ViewedRequests, VisionOrders,
    VisionTold,
};
use souffleur_base::ids::{IntakeId, UnitId};
use souffleur_base::in_hand;
use souffleur_chaos::{Chaos, Phase};
use souffleur_metrics::{SchedulerMetrics, StepTokens, process_time};
use souffleur_record::RecordedScheduler;
use souffleur_state::scheduler::{CacheFlushed, Next};
use souffleur_state::step::StepOutput;
use souffleur_state::supervision::{Desired, FIRST_GENERATION, Incarnation};
use souffleur_state::tiers::PrefillRate;
use steps::{PastSteps, StepWork};

/// Interval of the search for expired pins.
const PIN_SWEEP: Duration = Duration::from_secs(1);

/// Interval of the search for requests whose time limit has passed.
const DEADLINE_SWEEP: Duration = Duration::from_millis(100);

/// Longest interval between searches for long-running requests.
const LONG_REQUEST_SWEEP: Duration = Duration::from_secs(1);

pub struct Links {
    pub probe: Mailbox<Box<ProbePrefixes>>,
    pub radix_cache: Mailbox<Box<PlanStep>>,
    /// Plans that need no tree.
    pub allocator: Mailbox<Box<ReservePages>>,
    pub executor: Mailbox<RunStep>,
    /// Sequences that steps in flight need not decode.
    pub ended: Mailbox<crate::messages::SequencesEnded>,
    pub tokenizer: Mailbox<TokensReady>,
    /// `None` without a KV store, and before one that has died was started again.
    pub store: Option<Mailbox<StoreOrders>>,
    /// `None` without a vision tower.
    pub vision: Option<Mailbox<VisionOrders>>,
}

pub struct Scheduler {
    note: DeathNote,
    at: Incarnation,
    chaos: Chaos,
    /// Writes every call that changes the state to the message log, if one is kept.
    state: RecordedScheduler,
    links: Links,
    metrics: SchedulerMetrics,
    pending_pins: FxHashMap<u64, oneshot::Sender<usize>>,
    /// Replies to flush requests, sorted by the flushes' numbers.
    pending_flushes: Vec<(u64, oneshot::Sender<CacheFlushed>)>,
    drains: Vec<oneshot::Sender<()>>,
    /// First admissions, which are sent with the next tokens.
    admissions: Vec<(IntakeId, Instant)>,
    /// The rows and query tokens of the steps in flight.
    step_work: std::collections::VecDeque<StepWork>,
    past_steps: PastSteps,
    prefill_rate: PrefillRate,
    /// The scheduler has had work ever since the last step ended. Only then is the time until the next step the
    /// executor's idle time.
    had_work: bool,
    started: Instant,
    /// Time after which, and then interval at which, a request in flight is logged.
    log_long_requests: Option<Duration>,
    /// Time of the last search for long-running requests, in seconds since the start.
    searched_s: f64,
    /// The settings that the embedding program made in this generation of the unit and in earlier ones.
    settings: Desired,
    /// The changes of pins that were reported.
    reported_pins: u64,
    /// The Watchdog, which keeps the settings for later generations of the unit.
    keeper: Option<Recipient<HostSettings>>,
}

impl Scheduler {
    pub fn new(
        state: RecordedScheduler,
        links: Links,
        metrics: SchedulerMetrics,
        note: DeathNote,
    ) -> Self {
        Self {
            note,
            at: Incarnation {
                unit: UnitId::FIRST,
                generation: FIRST_GENERATION,
            },
            chaos: Chaos::default(),
            state,
            links,
            metrics,
            pending_pins: FxHashMap::default(),
            pending_flushes: Vec::new(),
            drains: Vec::new(),
            admissions: Vec::new(),
            step_work: std::collections::VecDeque::new(),
            past_steps: PastSteps::new(),
            prefill_rate: PrefillRate::default(),
            had_work: false,
            started: Instant::now(),
            log_long_requests: None,
            searched_s: 0.0,
            settings: Desired::default(),
            reported_pins: 0,
            keeper: None,
        }
    }

    pub fn incarnated(self, at: Incarnation) -> Self {
        Self { at, ..self }
    }

    /// Logs each request in flight whenever a further `every` has passed.
    pub fn logging_long_requests(self, every: Option<Duration>) -> Self {
        Self {
            log_long_requests: every,
            ..self
        }
    }

    fn report_long_requests(&mut self, every: Duration) {
        let now_s = self.started.elapsed().as_secs_f64();
        let since_s = std::mem::replace(&mut self.searched_s, now_s);
        let (shown, others) = self
            .state
            .long_requests((since_s, now_s), every.as_secs_f64());
        for request in shown {
            tracing::info!(
                rid = request.rid.as_str(),
                age_s = request.age_s,
                phase = request.phase,
                prompt_tokens = request.prompt_tokens,
                computed_tokens = request.computed_tokens,
                output_tokens = request.output_tokens,
                max_new_tokens = request.max_new_tokens,
                other_long_requests = others,
                "long-running request"
            );
        }
    }

    /// Sends all messages that are due, until the state waits for an answer. The executor comes before clients.
    fn drive(&mut self) {
        loop {
            let next = self.state.next();
            if self.dispatch(next).is_break() {
                break;
            }
        }
        let seqs = self.state.take_ended();
        if !seqs.is_empty() {
            let ended = crate::messages::SequencesEnded { seqs };
            self.links.ended.post(ended);
        }
        self.send_store_orders();
        self.send_vision_orders();
        self.report_pins();
        self.send_news();
    }

    fn send_vision_orders(&mut self) {
        let Some(vision) = &self.links.vision else {
            return;
        };
        let orders = self.state.take_vision_orders();
        if !orders.is_empty() {
            vision.post(VisionOrders { orders });
        }
    }

    fn dispatch(&mut self, next: Next) -> std::ops::ControlFlow<()> {
        match next {
            Next::Nothing => return std::ops::ControlFlow::Break(()),
            Next::ProbePrefixes(probe) => self.links.probe.post(probe),
            Next::PlanStep(plan) => self.links.radix_cache.post(plan),
            Next::ReservePages(reserve) => self.links.allocator.post(reserve),
            Next::RunStep(plan) => {
                let (prefill, decode) = plan.query_tokens();
                self.step_work.push_back(StepWork {
                    rows: plan.rows.len(),
                    prefill,
                    decode,
                    encodes: plan.vision.is_some(),
                });
                let spent = self.state.take_cleared_rows();
                self.links.executor.post(RunStep { plan, spent });
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    fn note_first_admissions(&mut self) {
        let admitted = self.state.take_first_admissions();
        if admitted.is_empty() {
            return;
        }
        let now = Instant::now();
        let now_s = (now - self.started).as_secs_f64();
        for first in admitted {
            self.metrics.queue_time(now_s - first.submitted_s);
            self.state.note_admitted(first.seq, now_s);
            self.admissions.push((first.intake, now));
        }
    }

    /// Answers the flushes that plans have carried out. One flush answers all requests up to its number.
    fn answer_flushes(&mut self) {
        for (number, flushed) in self.state.take_flushed() {
            let n_done = self
                .pending_flushes
                .partition_point(|(other, _)| *other <= number);
            for (_, reply) in self.pending_flushes.drain(..n_done) {
                let _ = reply.send(flushed);
            }
        }
    }

    fn send_news(&mut self) {
        let batch = self.state.take_news();
        let prefixes = self.state.take_prefix_events();
        if !batch.is_empty() || !prefixes.is_empty() {
            let admissions = std::mem::take(&mut self.admissions);
            self.links.tokenizer.post(TokensReady {
                from: self.at,
                batch,
                prefixes,
                admissions,
            });
        }
        self.answer_drains_if_idle();
    }

    fn answer_drains_if_idle(&mut self) {
        if self.state.is_idle() {
            self.had_work = false;
            for drain in self.drains.drain(..) {
                // The waiting side may be gone.
                let _ = drain.send(());
            }
        }
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.metrics.record_plan(&self.state.stats());
        ctx.run_interval(PIN_SWEEP, |scheduler, _| {
            scheduler
                .state
                .expire_pins(scheduler.started.elapsed().as_secs());
            scheduler.drive();
            // Writes the message log.
            scheduler.state.flush();
        });
        ctx.run_interval(DEADLINE_SWEEP, |scheduler, _| {
            let now_s = scheduler.started.elapsed().as_secs_f64();
            scheduler.state.expire_requests(now_s);
            scheduler.drive();
        });
        if let Some(every) = self.log_long_requests {
            ctx.run_interval(every.min(LONG_REQUEST_SWEEP), move |scheduler, _| {
                scheduler.report_long_requests(every);
            });
        }
    }
}

impl Handler<Posted<Submit>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<Submit>, _: &mut Context<Self>) {
        let (Submit { mut request }, _timer) = posted.open();
        in_hand::hold(request.intake);
        self.strike_request("Submit", &request.rid);
        request.submitted_s += self.started.elapsed().as_secs_f64();
        self.state.submit(*request);
        self.drive_after("Submit");
    }
}

impl Handler<Posted<ResumeRequests>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<ResumeRequests>, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "ResumeRequests");
        let (ResumeRequests { resume }, _timer) = posted.open();
        self.strike_resumed(&resume);
        let now_s = self.started.elapsed().as_secs_f64();
        self.state.resume(*resume, now_s);
        self.drive();
    }
}

impl Handler<CancelRequest> for Scheduler {
    type Result = ();

    fn handle(&mut self, cancel: CancelRequest, _: &mut Context<Self>) {
        self.strike_request("CancelRequest", &cancel.rid);
        self.state.cancel(&cancel.rid, cancel.flag.as_ref());
        self.drive_after("CancelRequest");
    }
}

impl Handler<CancelAll> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: CancelAll, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "CancelAll");
        self.state.cancel_all();
        self.drive_after("CancelAll");
    }
}

impl Handler<Posted<StopFound>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<StopFound>, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "StopFound");
        let (StopFound { stops }, _timer) = posted.open();
        for (rid, kept) in stops {
            self.state.stop_found(&rid, kept);
        }
        self.drive_after("StopFound");
    }
}

impl Handler<Posted<Box<PrefixesProbed>>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<Box<PrefixesProbed>>, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "PrefixesProbed");
        let (probed, _timer) = posted.open();
        let next = self.state.prefixes_probed(*probed);
        self.strike(Phase::Middle, "PrefixesProbed");
        let _ = self.dispatch(next);
        self.drive();
        self.strike(Phase::Exit, "PrefixesProbed");
    }
}

impl Handler<Posted<Box<StepPlanned>>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<Box<StepPlanned>>, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "StepPlanned");
        let (planned, _timer) = posted.open();
        let next = self.state.step_planned(*planned);
        self.strike(Phase::Middle, "StepPlanned");
        // `Nothing` here closes the plan; `drive` may open another one.
        let _ = self.dispatch(next);
        self.note_first_admissions();
        // Before the host knows of a pin, the Watchdog keeps it.
        self.report_pins();
        for (pin, tokens) in self.state.take_pinned() {
            if let Some(reply) = self.pending_pins.remove(&pin) {
                let _ = reply.send(tokens);
            }
        }
        self.answer_flushes();
        self.drive();
        self.strike(Phase::Exit, "StepPlanned");
        self.metrics.record_plan(&self.state.stats());
    }
}

impl Handler<Posted<VisionTold>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<VisionTold>, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "VisionTold");
        let (VisionTold { news }, _timer) = posted.open();
        for news in news {
            self.state.vision_told(news);
        }
        self.drive_after("VisionTold");
    }
}

impl Handler<Posted<StepDone>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<StepDone>, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "StepDone");
        let (done, _timer) = posted.open();
        let work = self.step_work.pop_front().unwrap_or_default();
        let (prefill, planned) = (work.prefill, work.decode);
        let skipped = done.result.as_ref().map_or(0, StepOutput::n_skipped);
        let decode = planned.saturating_sub(skipped);
        let took = Duration::from_secs_f64(done.run_seconds);
        let times = (process_time(done.began), took);
        let step_id = done.step.get();
        self.past_steps
            .push(step_id, StepWork { decode, ..work }, times);
        let ran = planned == 0 || prefill + decode > 0;
        let had_work = std::mem::replace(&mut self.had_work, true);
        let idle_seconds = done.idle_seconds * f64::from(had_work);
        // A few decode rows take little of the time of a step with a large prefill.
        let run_seconds = done.run_seconds;
        if prefill > 0 && decode * 8 <= prefill {
            self.prefill_rate.note(prefill, run_seconds);
        }
        if work.encodes {
            self.metrics.record_encoding(run_seconds);
        }
        if let Err(error) = &done.result {
            tracing::error!(
                step = done.step.get(),
                %error,
                "a step failed: its requests are computed again, or end with this error"
            );
        }
        if let Ok(output) = &done.result {
            self.strike_rows(output);
            let micros = (run_seconds * 1e6).round() as u64;
            self.state.step_took(done.step, micros);
        }
        let reported_before = self.state.reported_tokens();
        self.state.step_done(done.step, done.result);
        self.metrics.record_drafts(self.state.draft_counts());
        if ran {
            let work = StepTokens {
                prefilled: prefill as u64,
                decoded: decode as u64,
                delivered: self.state.reported_tokens() - reported_before,
            };
            self.metrics.record_work(run_seconds, idle_seconds, work);
        }
        self.drive_after("StepDone");
    }
}

impl Handler<GetStats> for Scheduler {
    type Result = actix::MessageResult<GetStats>;

    fn handle(&mut self, _: GetStats, _: &mut Context<Self>) -> Self::Result {
        actix::MessageResult(self.state.stats())
    }
}

impl Handler<GetLoad> for Scheduler {
    type Result = actix::MessageResult<GetLoad>;

    fn handle(&mut self, _: GetLoad, _: &mut Context<Self>) -> Self::Result {
        let (stats, pending) = (self.state.stats(), self.state.pending_tokens());
        actix::MessageResult(self.metrics.load(stats, pending))
    }
}

impl Handler<GetView> for Scheduler {
    type Result = actix::MessageResult<GetView>;

    fn handle(&mut self, view: GetView, _: &mut Context<Self>) -> Self::Result {
        let now_s = self.started.elapsed().as_secs_f64();
        let (requests, n_requests) = match view.requests {
            ViewedRequests::First(most) => self.state.live_requests(now_s, most),
            ViewedRequests::One(rid) => self.state.live_request(&rid, now_s),
        };
        actix::MessageResult(Box::new(EngineView {
            stats: self.state.stats(),
            output_tokens: self.state.reported_tokens(),
            steps: self.past_steps.after(view.steps_after),
            newest_step: self.past_steps.newest(),
            requests,
            n_requests,
            pools: self.state.live_pools(),
            pins: self.state.live_pins(),
        }))
    }
}

impl Handler<Drain> for Scheduler {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, _: &mut Context<Self>) -> Self::Result {
        let (drain, drained) = oneshot::channel();
        self.drains.push(drain);
        self.send_news();
        Box::pin(async move {
            // A scheduler that has stopped has no requests left.
            let _ = drained.await;
        })
    }
}

impl Handler<StopActor> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
