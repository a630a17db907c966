//! Runs the engine's scheduler, tree and pools on a trace in virtual time, without actors.
//!
//! A step takes the time that the roofline model computes. Planning takes no virtual time, since the engine plans step
//! N+1 while step N runs. So the simulation plans step N+1 when step N starts, and requests that arrive during step N
//! enter step N+2.

use std::collections::VecDeque;
use std::sync::Arc;

use super::SimulateError;
use super::disk::StoreModel;
use super::outcome::{Moment, Outcome, RequestFate, RequestOutcome};
use super::replay::MAX_POOL_PAGES;
use super::roofline::{Roofline, StepCost};
use super::rows::{prefill_only_tokens, row_result};
use super::store::{StoreAnswer, VirtualStore};
use super::trace::{Trace, TraceRequest};
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_config::EngineConfig;
use souffleur_engine::{EngineParts, ModelInfo};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::IntakeLimits;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::step::{RowWork, StepOutput, StepPlan};
use souffleur_state::tiers::PrefillRate;

pub struct Simulation<'a> {
    pub config: &'a EngineConfig,
    pub model: &'a ModelInfo,
    pub roofline: &'a Roofline,
    /// The engine's KV store, which starts empty; `None` without one.
    pub store: Option<&'a StoreModel>,
    /// Sets `ignore_eos` on every request, as load generators do. Otherwise the scheduler reserves memory for only a
    /// part of the output, and may have to retract the request.
    pub ignore_eos: bool,
}

/// Runs a trace to its end. Fails if the configuration is invalid, or if the pool has too many pages to simulate.
pub fn simulate(simulation: &Simulation<'_>, trace: &Trace) -> Result<Outcome, SimulateError> {
    let mut engine = VirtualEngine::new(simulation)?;
    engine.run(trace)?;
    Ok(engine.finish())
}

struct VirtualEngine<'a> {
    simulation: &'a Simulation<'a>,
    limits: IntakeLimits,
    states: ControlStates,
    store: Option<VirtualStore<'a>>,
    prefill_rate: PrefillRate,
    now_s: f64,
    /// The steps in flight. The first one runs for `step_s`, until `step_ends_s`.
    steps: VecDeque<Box<StepPlan>>,
    step_ends_s: f64,
    step_s: f64,
    admission: Admission,
    outcome: Outcome,
}

/// The load of the engine (`requests`, `prompt_tokens`), and positions in the trace (`next` to admit, `arrived`).
#[derive(Default)]
struct Admission {
    requests: usize,
    prompt_tokens: usize,
    next: usize,
    arrived: usize,
    /// The number of arrived requests already considered for `waited_outside`.
    counted_outside: usize,
}

impl<'a> VirtualEngine<'a> {
    fn new(simulation: &'a Simulation<'a>) -> Result<Self, SimulateError> {
        let (config, model) = (simulation.config, simulation.model);
        let mut limits = EngineParts::scheduler_limits(model, config)?;
        limits.tier = simulation.store.map(|store| store.shape.limits);
        let pages = limits.total_pages;
        if pages > MAX_POOL_PAGES {
            let reason = format!(
                "has {pages} pages, must have at most {MAX_POOL_PAGES}: set a smaller kv_tokens or a larger page_size"
            );
            return Err(SimulateError::value("the KV pool", reason));
        }
        let setup = ControlSetup {
            limits,
            schedule_policy: config.schedule_policy.clone(),
            diagnoses_misses: false,
        };
        let mut states = setup.build()?;
        states.scheduler.store_serves(simulation.store.is_some());
        let page_size = setup.limits.page_size;
        let kv_tokens = page_size.tokens_in(setup.limits.total_pages);
        Ok(Self {
            simulation,
            limits: IntakeLimits {
                context_length: model.context_length,
                capacity_tokens: kv_tokens,
                page_size,
            },
            states,
            store: simulation.store.map(VirtualStore::new),
            prefill_rate: PrefillRate::default(),
            now_s: 0.0,
            steps: VecDeque::new(),
            step_ends_s: 0.0,
            step_s: 0.0,
            admission: Admission::default(),
            outcome: Outcome::new(kv_tokens),
        })
    }

    fn run(&mut self, trace: &Trace) -> Result<(), SimulateError> {
        let requests = &trace.requests;
        self.outcome.requests.reserve_exact(requests.len());
        loop {
            let arrival_s = requests
                .get(self.admission.arrived)
                .map(|request| request.arrival_s);
            let end_s = (!self.steps.is_empty()).then_some(self.step_ends_s);
            if arrival_s.is_none() && end_s.is_none() && self.admission.requests == 0 {
                break;
            }
            let store_s = self.store.as_ref().and_then(VirtualStore::next_event_s);
            let events = [end_s, arrival_s, store_s].into_iter().flatten();
            let Some(next_s) = events.min_by(f64::total_cmp) else {
                return Err(SimulateError::Stuck {
                    in_flight: self.admission.requests,
                    now_s: self.now_s,
                });
            };
            self.now_s = next_s;
            if end_s == Some(next_s) {
                self.end_step();
            }
            self.admit(requests);
            self.plan_steps();
            self.record_moment();
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        let stats = self.states.scheduler.stats();
        self.outcome.store = self.store.as_ref().map(VirtualStore::outcome);
        self.outcome
            .timeline
            .record(Moment::new(self.now_s, &stats, 0));
        self.outcome.stats = stats;
        self.outcome.evicted_nodes = self.states.evicted_nodes;
        std::mem::replace(&mut self.outcome, Outcome::new(0))
    }

    /// Admits arrived requests in order, up to the admission limits. Further requests wait outside the engine.
    fn admit(&mut self, requests: &[TraceRequest]) {
        while requests
            .get(self.admission.arrived)
            .is_some_and(|request| request.arrival_s <= self.now_s)
        {
            self.admission.arrived += 1;
            self.outcome.makespan_s = self.now_s;
        }
        while self.admission.next < self.admission.arrived
            && self.can_admit(&requests[self.admission.next])
        {
            self.submit(&requests[self.admission.next]);
            self.admission.next += 1;
        }
        let first_uncounted = self.admission.next.max(self.admission.counted_outside);
        self.outcome.waited_outside += self.admission.arrived - first_uncounted;
        self.admission.counted_outside = self.admission.arrived;
    }

    fn can_admit(&self, request: &TraceRequest) -> bool {
        let config = self.simulation.config;
        let tokens = self.admission.prompt_tokens + request.prompt.len();
        self.admission.requests == 0
            || (self.admission.requests < config.max_queued_requests
                && tokens <= config.max_queued_tokens)
    }

    fn submit(&mut self, request: &TraceRequest) {
        let (index, prompt_tokens) = (self.outcome.requests.len(), request.prompt.len());
        self.outcome.requests.push(RequestOutcome {
            arrival_s: request.arrival_s,
            first_token_s: None,
            last_token_s: self.now_s,
            longest_gap_s: 0.0,
            prompt_tokens: prompt_tokens as u32,
            cached_tokens: 0,
            loaded_tokens: 0,
            output_tokens: 0,
            retractions: 0,
            end: RequestFate::TooLong,
        });
        let output_tokens = request.output_tokens as usize;
        let Ok(max_new_tokens) = self
            .limits
            .clip_max_new_tokens(prompt_tokens, output_tokens)
        else {
            return;
        };
        self.admission.requests += 1;
        self.admission.prompt_tokens += prompt_tokens;
        let sampling = SamplingParams {
            max_new_tokens: max_new_tokens as u32,
            ignore_eos: self.simulation.ignore_eos,
            sampling_seed: Some(0),
            ..SamplingParams::default()
        };
        self.states.scheduler.submit(Submission {
            rid: RequestId::new(index.to_string()),
            intake: IntakeId::new(index as u64),
            prompt: request.prompt.tokens(),
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
            logprobs: None,
            opening: Arc::default(),
            anchors: Arc::default(),
            grammar: None,
            vectors: None,
            bypasses_cache: false,
            pooling: None,
            priority: None,
            cancel: CancelFlag::default(),
            submitted_s: self.now_s,
            timeouts: RequestTimeouts::default(),
        });
    }

    fn plan_steps(&mut self) {
        loop {
            self.run_store();
            match self.states.advance() {
                Some(plan) => self.begin_step(plan),
                None if self.run_store() => {}
                None => break,
            }
        }
        self.record_tokens();
    }

    /// Passes orders to the store, and its answers to the scheduler. Returns false if there were no answers.
    fn run_store(&mut self) -> bool {
        let Some(store) = &mut self.store else {
            return false;
        };
        let scheduler = &mut self.states.scheduler;
        let orders = scheduler.take_store_orders();
        store.take_orders(orders, self.now_s, self.prefill_rate.tokens_per_s());
        store.advance(self.now_s);
        let answers = store.take_answers();
        let has_answers = !answers.is_empty();
        for answer in answers {
            match answer {
                StoreAnswer::Found { seq, found } => scheduler.prefix_found(seq, found),
                StoreAnswer::Fetched { ticket, blocks } => {
                    scheduler.blocks_fetched(ticket, blocks, None);
                }
                StoreAnswer::Written { ticket, kept } => {
                    scheduler.blocks_written(&[ticket], kept);
                }
            }
        }
        has_answers
    }

    fn begin_step(&mut self, plan: Box<StepPlan>) {
        let is_decode = plan
            .rows
            .iter()
            .all(|row| matches!(row.work, RowWork::Decode { .. }));
        match is_decode {
            _ if plan.rows.is_empty() => self.outcome.copy_steps += 1,
            true => self.outcome.decode_steps += 1,
            false => self.outcome.prefill_steps += 1,
        }
        self.outcome.largest_batch = self.outcome.largest_batch.max(plan.rows.len());
        self.steps.push_back(plan);
        if self.steps.len() == 1 {
            self.time_step();
        }
    }

    /// Starts the first step in flight now, and computes its duration.
    fn time_step(&mut self) {
        if let Some(plan) = self.steps.front() {
            let roofline = self.simulation.roofline;
            // A step without rows reads no weights.
            let cost = if plan.rows.is_empty() {
                StepCost::default()
            } else {
                roofline.cost(plan)
            };
            let copies = self.simulation.store.zip(plan.copies.as_deref());
            let copies_s = copies.map_or(0.0, |(store, copies)| store.copies_s(copies));
            self.step_s = roofline.seconds(&cost) + copies_s;
            self.step_ends_s = self.now_s + self.step_s;
            self.outcome.busy_s += self.step_s;
        }
    }

    fn end_step(&mut self) {
        let Some(plan) = self.steps.pop_front() else {
            return;
        };
        if !plan.rows.is_empty() {
            self.outcome.makespan_s = self.now_s;
        }
        if let Some(tokens) = prefill_only_tokens(&plan) {
            self.prefill_rate.note(tokens, self.step_s);
        }
        if let (Some(store), Some(copies)) = (&mut self.store, &plan.copies) {
            store.record_copies(copies);
        }
        let mut rows = self
            .states
            .scheduler
            .take_cleared_rows()
            .unwrap_or_default();
        rows.extend(plan.rows.iter().map(row_result));
        let micros = (self.step_s * 1e6).round() as u64;
        self.states.scheduler.step_took(plan.step, micros);
        self.states.scheduler.step_done(
            plan.step,
            Ok(StepOutput {
                step: plan.step,
                rows,
            }),
        );
        self.time_step();
        self.record_tokens();
    }

    fn record_tokens(&mut self) {
        self.states.scheduler.take_first_admissions();
        for update in self.states.scheduler.take_news() {
            let RequestTokens {
                intake,
                tokens,
                cached_tokens,
                loaded_tokens,
                num_retractions,
                end,
                logprobs: _,
            } = update;
            let request = &mut self.outcome.requests[intake.index()];
            (request.cached_tokens, request.retractions) = (cached_tokens, num_retractions);
            request.loaded_tokens = loaded_tokens;
            if !tokens.is_empty() {
                match request.first_token_s {
                    None => request.first_token_s = Some(self.now_s),
                    Some(_) => {
                        let gap_s = self.now_s - request.last_token_s;
                        request.longest_gap_s = request.longest_gap_s.max(gap_s);
                    }
                }
                request.output_tokens += tokens.len() as u32;
                request.last_token_s = self.now_s;
            }
            if let Some(end) = end {
                request.end = match *end {
                    RequestEnd::Finished(_) => RequestFate::Finished,
                    RequestEnd::Failed(_) => RequestFate::Failed,
                };
                request.last_token_s = self.now_s;
                self.admission.requests -= 1;
                self.admission.prompt_tokens -= request.prompt_tokens as usize;
            }
        }
    }

    fn record_moment(&mut self) {
        let outside = self.admission.arrived - self.admission.next;
        let moment = Moment::new(self.now_s, &self.states.scheduler.stats(), outside);
        self.outcome.timeline.record(moment);
    }
}

impl Drop for VirtualEngine<'_> {
    fn drop(&mut self) {
        // Otherwise the ledger would report pages in use as leaks.
        self.states.ledger.close();
    }
}
