//! Runs the engine's scheduler, tree and pools on a trace in virtual time, without actors.
//!
//! A step takes the time that the roofline model computes. Planning takes no virtual time, since the engine plans step
//! N+1 while step N runs. So the simulation plans step N+1 when step N starts, and requests that arrive during step N
//! enter step N+2.
//!
//! With replicas there are several units, each with its pools and its devices. The engine's router chooses the unit of
//! a request when the request is admitted, and a unit plans at its own events only.

use std::sync::Arc;

use super::SimulateError;
use super::disk::StoreModel;
use super::outcome::{Moment, Outcome, RequestFate, RequestOutcome};
use super::replay::MAX_POOL_PAGES;
use super::roofline::Roofline;
use super::routing::{Arrival, route};
use super::rows::SimulatedDrafts;
use super::trace::{Trace, TraceRequest};
use super::unit::VirtualUnit;
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_config::EngineConfig;
use souffleur_engine::{EngineParts, ModelInfo};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::ControlSetup;
use souffleur_state::router::{RouterState, recent_window};
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::IntakeLimits;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::submission::Submission;

pub struct Simulation<'a> {
    pub config: &'a EngineConfig,
    /// The model in each replica.
    pub model: &'a ModelInfo,
    pub roofline: &'a Roofline,
    /// The engine's KV store, which starts empty; `None` without one, as with replicas.
    pub store: Option<&'a StoreModel>,
    /// Sets `ignore_eos` on every request, as load generators do. Otherwise the scheduler reserves memory for only a
    /// part of the output, and may have to retract the request.
    pub ignore_eos: bool,
    /// `None`: decodes have no drafts.
    pub drafts: Option<SimulatedDrafts>,
}

/// Runs a trace to its end. Fails if the configuration is invalid, or if the pools have too many pages to simulate.
pub fn simulate(simulation: &Simulation<'_>, trace: &Trace) -> Result<Outcome, SimulateError> {
    let mut engine = VirtualEngine::new(simulation)?;
    engine.run(trace)?;
    Ok(engine.finish())
}

struct VirtualEngine<'a> {
    simulation: &'a Simulation<'a>,
    limits: IntakeLimits,
    units: Vec<VirtualUnit<'a>>,
    router: RouterState,
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
        check_replicas(simulation)?;
        let (config, model) = (simulation.config, simulation.model);
        let n_units = config.units();
        let mut limits = EngineParts::scheduler_limits(model, config)?;
        limits.tier = simulation.store.map(|store| store.shape.limits);
        let (pages, max_pages) = (limits.total_pages, MAX_POOL_PAGES / n_units as usize);
        if pages > max_pages {
            let reason = format!(
                "has {pages} pages, must have at most {max_pages}: set a smaller kv_tokens or a larger page_size"
            );
            return Err(SimulateError::value("the KV pool", reason));
        }
        let setup = ControlSetup {
            limits,
            schedule_policy: config.schedule_policy.clone(),
            diagnoses_misses: false,
        };
        let (roofline, store) = (simulation.roofline, simulation.store);
        let unit = |_| VirtualUnit::new(&setup, roofline, store, simulation.drafts.clone());
        let units = (0..n_units).map(unit).collect::<Result<Vec<_>, _>>()?;
        let page_size = setup.limits.page_size;
        let kv_tokens = page_size.tokens_in(pages);
        let router = RouterState::new(config.load_balance_method, n_units);
        Ok(Self {
            simulation,
            limits: IntakeLimits {
                context_length: model.context_length,
                capacity_tokens: kv_tokens,
                page_size,
            },
            units,
            router: router.with_window(recent_window(kv_tokens, n_units)),
            now_s: 0.0,
            admission: Admission::default(),
            outcome: Outcome::new(kv_tokens * n_units as usize),
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
        let ends_s = self.units.iter().filter_map(VirtualUnit::step_end_s);
        let end_s = ends_s.min_by(f64::total_cmp);
        if arrival_s.is_none() && end_s.is_none() && self.admission.requests == 0 {
            return Ok(None);
        }
        let events = end_s.into_iter().chain(arrival_s);
        let events = events.chain(self.units.iter().filter_map(VirtualUnit::store_event_s));
        match events.min_by(f64::total_cmp) {
            Some(next_s) => Ok(Some(next_s)),
            None => Err(SimulateError::Stuck {
                in_flight: self.admission.requests,
                now_s: self.now_s,
            }),
        }
    }

    fn end_steps(&mut self) {
        for index in 0..self.units.len() {
            let unit = &mut self.units[index];
            if unit.step_end_s() != Some(self.now_s) {
                continue;
            }
            if unit.end_step(self.now_s) {
                self.outcome.makespan_s = self.now_s;
            }
            self.record_tokens(index);
        }
    }

    fn finish(mut self) -> Outcome {
        let units = self.units.iter().map(VirtualUnit::outcome);
        self.outcome.take_units(units.collect());
        let last = Moment::new(self.now_s, &self.outcome.stats, 0);
        self.outcome.timeline.record(last);
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
            replica: None,
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
        let drafts = self.simulation.drafts.as_ref();
        let sampling = SamplingParams {
            max_new_tokens: max_new_tokens as u32,
            ignore_eos: self.simulation.ignore_eos,
            sampling_seed: Some(0),
            speculative_num_draft_tokens: drafts.map(|drafts| drafts.room),
            ..SamplingParams::default()
        };
        let (intake, prompt) = (IntakeId::new(index as u64), request.prompt.tokens());
        let arrival = Arrival {
            request: intake,
            tokens: &prompt,
            now_s: self.now_s,
        };
        let caches = self.units.iter().map(VirtualUnit::cache);
        let unit = route(&mut self.router, caches, &arrival);
        if self.units.len() > 1 {
            self.outcome.requests[index].replica = Some(unit.get());
        }
        self.units[unit.index()].submit(Submission {
            rid: RequestId::new(index.to_string()),
            intake,
            prompt,
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
            logprobs: None,
            opening: Arc::default(),
            anchors: Arc::default(),
            grammar: None,
            vectors: None,
            images: None,
            bypasses_cache: false,
            pooling: None,
            priority: None,
            cancel: CancelFlag::default(),
            submitted_s: self.now_s,
            timeouts: RequestTimeouts::default(),
            draft_texts: Default::default(),
        });
    }

    /// Plans the steps of the units that have events; of all units, if the event is none of theirs.
    fn plan_steps(&mut self) {
        let is_common = !self.units.iter().any(VirtualUnit::is_due);
        for index in 0..self.units.len() {
            let unit = &mut self.units[index];
            if is_common || unit.is_due() {
                unit.plan_steps(self.now_s);
                self.record_tokens(index);
            }
        }
    }

    fn record_tokens(&mut self, unit: usize) {
        for update in self.units[unit].take_news() {
            let RequestTokens {
                intake,
                tokens,
                cached_tokens,
                loaded_tokens,
                num_retractions,
                end,
                logprobs: _,
                drafts: _,
            } = update;
            let request = &mut self.outcome.requests[intake.index()];
            (request.cached_tokens, request.retractions) = (cached_tokens, num_retractions);
            request.loaded_tokens = loaded_tokens;
            if !tokens.is_empty() {
                match request.first_token_s {
                    None => {
                        request.first_token_s = Some(self.now_s);
                        let computed = request.prompt_tokens.saturating_sub(cached_tokens);
                        self.router.computed(intake, computed as usize);
                    }
                    Some(_) => {
                        let gap_s = self.now_s - request.last_token_s;
                        request.longest_gap_s = request.longest_gap_s.max(gap_s);
                    }
                }
                request.output_tokens += tokens.len() as u32;
                request.last_token_s = self.now_s;
                self.router.prefilled(intake, self.now_s);
                self.router.generated(intake, tokens.len());
            }
            if let Some(end) = end {
                request.end = match *end {
                    RequestEnd::Finished(_) => RequestFate::Finished,
                    RequestEnd::Failed(_) => RequestFate::Failed,
                };
                request.last_token_s = self.now_s;
                self.admission.requests -= 1;
                self.admission.prompt_tokens -= request.prompt_tokens as usize;
                self.router.ended(intake);
            }
        }
    }

    fn record_moment(&mut self) {
        let outside = self.admission.arrived - self.admission.next;
        let stats: Vec<EngineStats> = self.units.iter().map(VirtualUnit::stats).collect();
        let moment = Moment::new(self.now_s, &EngineStats::sum(&stats), outside);
        self.outcome.timeline.record(moment);
    }
}

/// Refuses parts that replicas do not have.
fn check_replicas(simulation: &Simulation<'_>) -> Result<(), SimulateError> {
    let n = simulation.config.dp_size;
    if n == 1 {
        return Ok(());
    }
    simulation.config.validate()?;
    if simulation.store.is_some() {
        let reason = format!(
            "is {n}, but a KV store is simulated, which is for a single replica: set dp_size to 1 or remove the store"
        );
        return Err(SimulateError::value("dp_size", reason));
    }
    Ok(())
}
