//! The control plane without actors and without a model: scheduler, tree, pools, and an executor that does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use souffleur::ids::{IntakeId, RequestId};
use souffleur::request::{CancelFlag, RequestTimeouts};
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::control::{ControlSetup, ControlStates};
use souffleur::state::pool::pages::PageSize;
use souffleur::state::sampling::SamplingParams;
use souffleur::state::scheduler::submission::Submission;
use souffleur::state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur::state::step::{RowResult, RowVerdict, StepOutput, StepPlan};

/// Sizes of the page pool and the page table.
#[derive(Clone, Copy)]
pub struct PoolSizes {
    pub page_size: u32,
    pub n_pages: u32,
    pub n_rows: u32,
}

impl PoolSizes {
    pub fn page_size(self) -> PageSize {
        PageSize::new(self.page_size).expect("the page size is positive")
    }

    pub fn states(self) -> ControlStates {
        let limits = SchedulerLimits {
            page_size: self.page_size(),
            total_pages: self.n_pages as usize,
            total_rows: self.n_rows as usize,
            max_prefill_tokens: 16_384,
            chunk_tokens: Some(8_192),
            prefix_wait: true,
            rules: BatchRules::default(),
            schedule_conservativeness: 1.0,
            max_pins: 0,
            queue: QueueRules::default(),
            eos_token_ids: Arc::from([]),
            states: None,
            windows: None,
            tier: None,
            vision: None,
        };
        let setup = ControlSetup {
            limits,
            schedule_policy: "fcfs".to_owned(),
            diagnoses_misses: false,
        };
        setup.build().expect("fcfs exists, and the pools are small")
    }
}

/// A request that generates exactly `max_new_tokens` tokens.
pub fn request(number: u64, prompt: &[u32], max_new_tokens: u32) -> Submission {
    Submission {
        rid: RequestId::new(format!("request-{number}")),
        intake: IntakeId::new(number),
        prompt: Arc::from(prompt),
        namespace: Namespace::default(),
        sampling: Arc::new(SamplingParams {
            max_new_tokens,
            ignore_eos: true,
            sampling_seed: Some(number),
            ..SamplingParams::default()
        }),
        logprobs: None,
        opening: Arc::default(),
        grammar: None,
        vectors: None,
        images: None,
        bypasses_cache: false,
        pooling: None,
        anchors: Default::default(),
        priority: None,
        cancel: CancelFlag::default(),
        submitted_s: 0.0,
        timeouts: RequestTimeouts::default(),
        draft_texts: Default::default(),
    }
}

/// The answer of an executor that computes nothing: a token for each row that samples.
pub fn answer(plan: &StepPlan, reused: Option<Vec<RowResult>>) -> StepOutput {
    let mut rows = reused.unwrap_or_default();
    rows.extend(plan.rows.iter().map(|row| RowResult {
        seq: row.seq,
        tokens: row.sample.then_some(17).into_iter().collect(),
        accepted: row.work.positions().len() as u32,
        logprobs: None,
        verdict: RowVerdict::Open,
        drafts: Default::default(),
    }));
    StepOutput {
        step: plan.step,
        rows,
    }
}

/// The states of the control plane, and the time spent in them.
pub struct Engine {
    pub states: ControlStates,
    steps: std::collections::VecDeque<Box<StepPlan>>,
    /// Time spent in the states since the last call of `take_elapsed_us`.
    elapsed: Duration,
    pub n_ended: usize,
}

impl Engine {
    pub fn new(sizes: PoolSizes) -> Self {
        Self {
            states: sizes.states(),
            steps: std::collections::VecDeque::new(),
            elapsed: Duration::ZERO,
            n_ended: 0,
        }
    }

    pub fn take_elapsed_us(&mut self) -> f64 {
        std::mem::take(&mut self.elapsed).as_secs_f64() * 1e6
    }

    pub fn steps_in_flight(&self) -> usize {
        self.steps.len()
    }

    /// Submits a request and plans the steps that are possible.
    pub fn submit(&mut self, request: Submission) {
        let started = Instant::now();
        self.states.scheduler.submit(request);
        self.plan_steps();
        self.elapsed += started.elapsed();
    }

    /// Ends the oldest step and plans the next ones; false if no step is in flight.
    pub fn end_step(&mut self) -> bool {
        let Some(plan) = self.steps.pop_front() else {
            return false;
        };
        let reused = self.states.scheduler.take_cleared_rows();
        let output = answer(&plan, reused);
        drop(plan);
        let started = Instant::now();
        self.states.scheduler.step_done(output.step, Ok(output));
        self.plan_steps();
        let news = self.states.scheduler.take_news();
        self.elapsed += started.elapsed();
        self.n_ended += news.iter().filter(|news| news.end.is_some()).count();
        true
    }

    fn plan_steps(&mut self) {
        while let Some(plan) = self.states.advance() {
            self.steps.push_back(plan);
        }
    }
}
