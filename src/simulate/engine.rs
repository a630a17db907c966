//! Runs the engine's scheduler, tree and pools on a trace in virtual time, without actors.
//!
//! A step takes the time that the roofline model computes. Planning takes no virtual time, since the engine plans step
//! N+1 while step N runs. So the simulation plans step N+1 when step N starts, and requests that arrive during step N
//! enter step N+2.

use std::sync::Arc;

use super::SimulateError;
use super::disk::StoreModel;
use super::outcome::{Moment, Outcome, RequestFate, RequestOutcome};
use super::replay::MAX_POOL_PAGES;
use super::roofline::Roofline;
use super::trace::{Trace, TraceRequest};
use super::unit::VirtualUnit;
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_config::EngineConfig;
use souffleur_engine::{EngineParts, ModelInfo};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::ControlSetup;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::IntakeLimits;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::scheduler::submission::Submission;

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
    unit: VirtualUnit<'a>,
    now_s: f64,
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
        let unit = VirtualUnit::new(&setup, simulation.roofline, simulation.store)?;
        let page_size = setup.limits.page_size;
        let kv_tokens = page_size.tokens_in(setup.limits.total_pages);
        Ok(Self {
            simulation,
            limits: IntakeLimits {
                context_length: model.context_length,
                capacity_tokens: kv_tokens,
                page_size,
            },
            unit,
            now_s: 0.0,
            admission: Admission::default(),
            outcome: Outcome::new(kv_tokens),
        })
    }

    fn run(&mut self, trace: &Trace) -> Result<(), SimulateError> {
        let requests = &trace.requests;
        self.outcome.requests.reserve_exact(requests.len());
        while let Some(next_s) = self.next_event_s(requests)? {
            self.now_s = next_s;
            self.end_steps();
            self.admit(requests);
            self.plan_steps();
            self.record_moment();
        }
        Ok(())
    }

    /// The time of the next event; `None` after the last one.
    fn next_event_s(&self, requests: &[TraceRequest]) -> Result<Option<f64>, SimulateError> {
        let arrival_s = requests
            .get(self.admission.arrived)
            .map(|request| request.arrival_s);
        let end_s = self.unit.step_end_s();
        if arrival_s.is_none() && end_s.is_none() && self.admission.requests == 0 {
            return Ok(None);
        }
        let events = [end_s, arrival_s, self.unit.store_event_s()];
        match events.into_iter().flatten().min_by(f64::total_cmp) {
            Some(next_s) => Ok(Some(next_s)),
            None => Err(SimulateError::Stuck {
                in_flight: self.admission.requests,
                now_s: self.now_s,
            }),
        }
    }

    fn end_steps(&mut self) {
        if self.unit.step_end_s() == Some(self.now_s) {
            if self.unit.end_step(self.now_s) {
                self.outcome.makespan_s = self.now_s;
            }
            self.record_tokens();
        }
    }

    fn finish(mut self) -> Outcome {
        let unit = self.unit.outcome();
        let last = Moment::new(self.now_s, &unit.stats, 0);
        self.outcome.timeline.record(last);
        self.outcome.take_unit(unit);
        self.outcome
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
        self.unit.states.scheduler.submit(Submission {
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
        self.unit.plan_steps(self.now_s);
        self.record_tokens();
    }

    fn record_tokens(&mut self) {
        let scheduler = &mut self.unit.states.scheduler;
        scheduler.take_first_admissions();
        for update in scheduler.take_news() {
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
        let stats = self.unit.states.scheduler.stats();
        let moment = Moment::new(self.now_s, &stats, outside);
        self.outcome.timeline.record(moment);
    }
}
