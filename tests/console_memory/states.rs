//! The control plane of the tests, without actors, and an executor that computes nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use souffleur::ids::{IntakeId, RequestId};
use souffleur::request::{CancelFlag, RequestTimeouts};
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::control::{Carried, ControlSetup, ControlStates, Leg};
use souffleur::state::pool::pages::PageSize;
use souffleur::state::sampling::SamplingParams;
use souffleur::state::scheduler::submission::Submission;
use souffleur::state::scheduler::{BatchRules, Next, QueueRules, SchedulerLimits};
use souffleur::state::step::{RowResult, RowVerdict, StepOutput, StepPlan};

/// Requests that decode together.
pub const BATCH: usize = 4;
/// No request ends during a test.
const MAX_NEW_TOKENS: u32 = 4000;
const PROMPT_TOKENS: u32 = 16;

pub fn states() -> ControlStates {
    let limits = SchedulerLimits {
        page_size: PageSize::new(1).expect("positive"),
        total_pages: 2 * BATCH * (PROMPT_TOKENS + MAX_NEW_TOKENS) as usize,
        total_rows: BATCH,
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

/// Requests with different prompts.
pub fn requests() -> impl Iterator<Item = Submission> {
    (0..BATCH as u64).map(|number| Submission {
        rid: RequestId::new(format!("request-{number}")),
        intake: IntakeId::new(number),
        prompt: (0..PROMPT_TOKENS)
            .map(|token| token + 100 * number as u32)
            .collect(),
        namespace: Namespace::default(),
        sampling: Arc::new(SamplingParams {
            max_new_tokens: MAX_NEW_TOKENS,
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
        anchors: Arc::default(),
        priority: None,
        cancel: CancelFlag::default(),
        submitted_s: 0.0,
        timeouts: RequestTimeouts::default(),
        draft_texts: Default::default(),
    })
}

/// A token for each row that samples.
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

/// Runs the same steps as the actors, with each message of a plan in a box as theirs are.
pub struct Loop {
    states: ControlStates,
    /// Steps in flight, each with the rows for its result.
    steps: VecDeque<(Box<StepPlan>, Option<Vec<RowResult>>)>,
}

impl Loop {
    pub fn start() -> Self {
        let mut new = Self {
            states: states(),
            steps: VecDeque::new(),
        };
        for request in requests() {
            new.states.scheduler.submit(request);
        }
        new.plan();
        new
    }

    fn plan(&mut self) {
        loop {
            let mut next = self.states.scheduler.next();
            if let Next::Nothing = next {
                return;
            }
            loop {
                match Leg::try_from(next) {
                    Ok(leg) => next = self.carry(leg),
                    Err(Next::RunStep(plan)) => {
                        let spent = self.states.scheduler.take_cleared_rows();
                        self.steps.push_back((plan, spent));
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
    }

    fn carry(&mut self, mut leg: Leg) -> Next {
        loop {
            match self.states.carry(leg) {
                Carried::On(next) => leg = next,
                Carried::Back(next) => return next,
            }
        }
    }

    pub fn end_step(&mut self) {
        let (plan, spent) = self.steps.pop_front().expect("a step is in flight");
        let output = answer(&plan, spent);
        drop(plan);
        self.states.scheduler.step_done(output.step, Ok(output));
        self.plan();
        drop(self.states.scheduler.take_ended());
        drop(self.states.scheduler.take_news());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The pages of requests in flight are not lost.
        self.states.ledger.close();
    }
}
