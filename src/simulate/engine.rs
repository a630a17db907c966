//! The states of an engine in virtual time: what the actors' handlers do, without actors.
//!
//! A plan and its messages take no time, as they take none of an executor that has a step queued; a step takes what
//! the roofline says. So step N+1 is planned the moment step N begins, exactly as in the engine, and whoever comes
//! meanwhile is in step N+2.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::smallvec;

use super::SimulateError;
use super::outcome::{Moment, Outcome, RequestFate, RequestOutcome};
use super::replay::MAX_POOL_PAGES;
use super::roofline::Roofline;
use super::trace::{PROMPT_VOCAB, Trace, TraceRequest};
use crate::config::EngineConfig;
use crate::engine::{EngineParts, ModelInfo};
use crate::ids::{IntakeId, RequestId, SeqId};
use crate::request::{CancelFlag, RequestTimeouts};
use crate::state::cache::namespace::Namespace;
use crate::state::control::{ControlSetup, ControlStates};
use crate::state::sampling::SamplingParams;
use crate::state::scheduler::IntakeLimits;
use crate::state::scheduler::news::{RequestEnd, RequestTokens};
use crate::state::scheduler::submission::Submission;
use crate::state::step::{RowResult, RowVerdict, RowWork, StepOutput, StepPlan, StepRow};

/// What is simulated besides the load.
pub struct Simulation<'a> {
    /// How the engine is configured.
    pub config: &'a EngineConfig,
    /// What it knows of its model, and its pool.
    pub model: &'a ModelInfo,
    /// How long its steps take.
    pub roofline: &'a Roofline,
    /// Tells the engine that every request generates all its tokens, as load generators do. Without it memory is
    /// reserved for a part of them only, and the rest may end in a retraction.
    pub ignore_eos: bool,
}

/// Runs a trace to its end.
///
/// # Errors
/// A configuration that cannot be used; a pool of more pages than can be simulated.
pub fn simulate(simulation: &Simulation<'_>, trace: &Trace) -> Result<Outcome, SimulateError> {
    let mut engine = VirtualEngine::new(simulation)?;
    engine.run(trace)?;
    Ok(engine.finish())
}

struct VirtualEngine<'a> {
    simulation: &'a Simulation<'a>,
    limits: IntakeLimits,
    states: ControlStates,
    now_s: f64,
    /// The first one runs, until `step_ends_s`.
    steps: VecDeque<Box<StepPlan>>,
    step_ends_s: f64,
    inside: Inside,
    outcome: Outcome,
}

/// Who has been let in.
#[derive(Default)]
struct Inside {
    requests: usize,
    prompt_tokens: usize,
    /// The next request of the trace to be let in.
    next: usize,
    /// Those before it have come.
    arrived: usize,
    /// Those before it that wait outside have been counted.
    seen_outside: usize,
}

impl<'a> VirtualEngine<'a> {
    fn new(simulation: &'a Simulation<'a>) -> Result<Self, SimulateError> {
        let (config, model) = (simulation.config, simulation.model);
        let limits = EngineParts::scheduler_limits(model, config)?;
        let pages = limits.total_pages;
        if pages > MAX_POOL_PAGES {
            let reason = format!("make {pages} pages, must make at most {MAX_POOL_PAGES}");
            return Err(SimulateError::value("kv_tokens", reason));
        }
        let setup = ControlSetup {
            limits,
            schedule_policy: config.schedule_policy.clone(),
            diagnoses_misses: false,
        };
        let states = setup.build()?;
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
            now_s: 0.0,
            steps: VecDeque::new(),
            step_ends_s: 0.0,
            inside: Inside::default(),
            outcome: Outcome::new(kv_tokens),
        })
    }

    fn run(&mut self, trace: &Trace) -> Result<(), SimulateError> {
        let requests = &trace.requests;
        self.outcome.requests.reserve_exact(requests.len());
        loop {
            let arrival_s = requests
                .get(self.inside.arrived)
                .map(|request| request.arrival_s);
            let end_s = (!self.steps.is_empty()).then_some(self.step_ends_s);
            match (arrival_s, end_s) {
                (None, None) if self.inside.requests == 0 => break,
                (None, None) => {
                    return Err(SimulateError::Stuck {
                        inside: self.inside.requests,
                        now_s: self.now_s,
                    });
                }
                (Some(arrival_s), None) => self.now_s = arrival_s,
                (Some(arrival_s), Some(end_s)) if arrival_s < end_s => self.now_s = arrival_s,
                (_, Some(end_s)) => {
                    self.now_s = end_s;
                    self.end_step();
                }
            }
            self.let_in(requests);
            self.pump();
            self.note_moment();
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        let stats = self.states.scheduler.stats();
        self.outcome.makespan_s = self.now_s;
        self.outcome
            .timeline
            .note(Moment::new(self.now_s, &stats, 0));
        self.outcome.stats = stats;
        self.outcome.evicted_nodes = self.states.evicted_nodes;
        std::mem::replace(&mut self.outcome, Outcome::new(0))
    }

    /// Lets in whoever has come, as far as the doors' limits allow; the others wait outside, in order.
    fn let_in(&mut self, requests: &[TraceRequest]) {
        while requests
            .get(self.inside.arrived)
            .is_some_and(|request| request.arrival_s <= self.now_s)
        {
            self.inside.arrived += 1;
        }
        while self.inside.next < self.inside.arrived && self.has_room(&requests[self.inside.next]) {
            self.submit(&requests[self.inside.next]);
            self.inside.next += 1;
        }
        let first_unseen = self.inside.next.max(self.inside.seen_outside);
        self.outcome.waited_outside += self.inside.arrived - first_unseen;
        self.inside.seen_outside = self.inside.arrived;
    }

    fn has_room(&self, request: &TraceRequest) -> bool {
        let config = self.simulation.config;
        let tokens = self.inside.prompt_tokens + request.prompt.len();
        self.inside.requests == 0
            || (self.inside.requests < config.max_queued_requests
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
        self.inside.requests += 1;
        self.inside.prompt_tokens += prompt_tokens;
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

    /// Plans until there is nothing to plan.
    fn pump(&mut self) {
        while let Some(plan) = self.states.advance() {
            self.begin_step(plan);
        }
        self.hear();
    }

    fn begin_step(&mut self, plan: Box<StepPlan>) {
        let is_decode = plan
            .rows
            .iter()
            .all(|row| matches!(row.work, RowWork::Decode { .. }));
        match is_decode {
            true => self.outcome.decode_steps += 1,
            false => self.outcome.prefill_steps += 1,
        }
        self.outcome.largest_batch = self.outcome.largest_batch.max(plan.rows.len());
        self.steps.push_back(plan);
        if self.steps.len() == 1 {
            self.time_step();
        }
    }

    /// The first step under way begins now.
    fn time_step(&mut self) {
        if let Some(plan) = self.steps.front() {
            let roofline = self.simulation.roofline;
            let step_s = roofline.seconds(&roofline.cost(plan));
            self.step_ends_s = self.now_s + step_s;
            self.outcome.busy_s += step_s;
        }
    }

    fn end_step(&mut self) {
        let Some(plan) = self.steps.pop_front() else {
            return;
        };
        let mut rows = self.states.scheduler.take_spent().unwrap_or_default();
        rows.extend(plan.rows.iter().map(row_result));
        self.states.scheduler.step_done(
            plan.step,
            Ok(StepOutput {
                step: plan.step,
                rows,
            }),
        );
        self.time_step();
        self.hear();
    }

    /// Writes down what happened to the requests.
    fn hear(&mut self) {
        self.states.scheduler.take_first_admissions();
        for news in self.states.scheduler.take_news() {
            let RequestTokens {
                intake,
                tokens,
                cached_tokens,
                loaded_tokens: _,
                num_retractions,
                end,
                logprobs: _,
            } = news;
            let request = &mut self.outcome.requests[intake.index()];
            (request.cached_tokens, request.retractions) = (cached_tokens, num_retractions);
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
                self.inside.requests -= 1;
                self.inside.prompt_tokens -= request.prompt_tokens as usize;
            }
        }
    }

    fn note_moment(&mut self) {
        let outside = self.inside.arrived - self.inside.next;
        let moment = Moment::new(self.now_s, &self.states.scheduler.stats(), outside);
        self.outcome.timeline.note(moment);
    }
}

impl Drop for VirtualEngine<'_> {
    /// What the tree and the sequences hold goes down with the pool.
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}

fn row_result(row: &StepRow) -> RowResult {
    RowResult {
        seq: row.seq,
        tokens: if row.sample {
            smallvec![output_token(row.seq)]
        } else {
            smallvec![]
        },
        accepted: row.work.positions().len() as u32,
        logprobs: None,
        verdict: RowVerdict::Open,
    }
}

/// No prompt has it, and no other output either: what a trace's prompts repeat of earlier outputs is in their blocks.
fn output_token(seq: SeqId) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    PROMPT_VOCAB | (seq.get().wrapping_mul(ODD) >> 33) as u32
}
