//! The control plane without actors and without a model: scheduler, tree, pools, and an executor that does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use souffleur::state::step::{RowResult, StepOutput, StepPlan};
use souffleur::ids::{IntakeId, RequestId};
use souffleur::request::{CancelFlag, RequestTimeouts};
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::pool::pages::{PageSize, PoolLedger};
use souffleur::state::scheduler::policy::schedule_policy;
use souffleur::state::pool::pools::Pools;
use souffleur::state::plan::probe::run_probe;
use souffleur::state::cache::radix_tree::RadixTree;
use souffleur::state::sampling::SamplingParams;
use souffleur::state::scheduler::{BatchRules, Next, QueueRules, Scheduler, SchedulerLimits};
use souffleur::state::scheduler::submission::Submission;
use souffleur::state::plan::transaction::run_plan;

/// What a control plane is made of.
#[derive(Clone, Copy)]
pub struct Shape {
    pub page_size: u32,
    pub n_pages: u32,
    pub n_rows: u32,
}

impl Shape {
    pub fn page_size(self) -> PageSize {
        PageSize::new(self.page_size).expect("it is positive")
    }

    pub fn scheduler(self, ledger: &Arc<PoolLedger>) -> Scheduler {
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
        };
        let policy = schedule_policy("fcfs").expect("fcfs exists");
        Scheduler::new(limits, policy, ledger.clone())
    }

    pub fn tree(self, ledger: &Arc<PoolLedger>) -> RadixTree {
        RadixTree::new(self.page_size(), EvictionPolicy::default(), ledger.clone())
    }

    pub fn pools(self, ledger: &Arc<PoolLedger>) -> Pools {
        Pools::new(self.n_pages, self.n_rows, self.page_size(), ledger.clone())
    }
}

/// A request that generates exactly so many tokens.
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
        priority: None,
        cancel: CancelFlag::default(),
        submitted_s: 0.0,
        timeouts: RequestTimeouts::default(),
    }
}

/// What an executor answers that computes nothing: a token for each row that samples.
pub fn answer(plan: &StepPlan, spent: Option<Vec<RowResult>>) -> StepOutput {
    let mut rows = spent.unwrap_or_default();
    rows.extend(plan.rows.iter().map(|row| RowResult {
        seq: row.seq,
        tokens: row.sample.then_some(17).into_iter().collect(),
        accepted: row.work.positions().len() as u32,
        logprobs: None,
        nan: false,
    }));
    StepOutput {
        step: plan.step,
        rows,
    }
}

/// The states, and how long they took.
pub struct Engine {
    pub scheduler: Scheduler,
    pub tree: RadixTree,
    pools: Pools,
    steps: std::collections::VecDeque<Box<StepPlan>>,
    /// Time spent in the states since it was last taken.
    spent: Duration,
    pub n_ended: usize,
}

impl Engine {
    pub fn new(shape: Shape) -> Self {
        let ledger = Arc::new(PoolLedger::new(shape.page_size()));
        Self {
            scheduler: shape.scheduler(&ledger),
            tree: shape.tree(&ledger),
            pools: shape.pools(&ledger),
            steps: std::collections::VecDeque::new(),
            spent: Duration::ZERO,
            n_ended: 0,
        }
    }

    pub fn take_spent_us(&mut self) -> f64 {
        std::mem::take(&mut self.spent).as_secs_f64() * 1e6
    }

    pub fn steps_in_flight(&self) -> usize {
        self.steps.len()
    }

    /// Takes a request in and plans what can be planned.
    pub fn submit(&mut self, request: Submission) {
        let started = Instant::now();
        self.scheduler.submit(request);
        self.drive();
        self.spent += started.elapsed();
    }

    /// Ends the oldest step and plans the next ones; false without one.
    pub fn end_step(&mut self) -> bool {
        let Some(plan) = self.steps.pop_front() else {
            return false;
        };
        let spent = self.scheduler.take_spent();
        let output = answer(&plan, spent);
        drop(plan);
        let started = Instant::now();
        self.scheduler.step_done(output.step, Ok(output));
        self.drive();
        let news = self.scheduler.take_news();
        self.spent += started.elapsed();
        self.n_ended += news.iter().filter(|news| news.end.is_some()).count();
        true
    }

    fn drive(&mut self) {
        loop {
            match self.scheduler.next() {
                Next::Nothing => return,
                next => self.follow(next),
            }
        }
    }

    /// The plan's way through tree and pools, and back.
    fn follow(&mut self, mut next: Next) {
        loop {
            let reserve = match next {
                Next::Nothing => return,
                Next::Run(plan) => return self.steps.push_back(plan),
                Next::Probe(request) => {
                    let reply = run_probe(&mut self.tree, *request);
                    next = self.scheduler.probed(reply);
                    continue;
                }
                Next::Plan(request) => run_plan(&mut self.tree, *request),
                Next::Reserve(request) => *request,
            };
            let planned = self.pools.reserve(reserve);
            next = self.scheduler.planned(planned);
        }
    }
}
