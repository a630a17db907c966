//! The engine of the message log tests: a recorded scheduler without actors.

use std::collections::BTreeMap;

use super::*;
use souffleur_executor::fake::FakeDrafts;
use souffleur_state::pooling::Pooling;
use souffleur_state::scheduler::news::RequestTokens;
use souffleur_state::scheduler::submission::{IdFloor, Resume, Resumption};

/// Scheduler, tree, pools and executor, which run one after the other in one thread.
pub(super) struct Engine {
    pub(super) states: ControlStates<RecordedScheduler>,
    pub(super) executor: FakeExecutor,
    pub(super) steps: VecDeque<StepPlan>,
    pub(super) n_submitted: u64,
    /// The requests in flight, with what their clients were told.
    pub(super) live: BTreeMap<IntakeId, Resumption>,
    has_drafts: bool,
}

impl Engine {
    pub(super) fn new(sink: &Arc<LogSink>, generation: u64) -> Self {
        Self::with_setup(&setup(), Some(sink.recorder(generation)))
    }

    pub(super) fn with_setup(setup: &ControlSetup, recorder: Option<Recorder>) -> Self {
        Self::with_drafts(setup, recorder, None)
    }

    /// `accept` is the probability that a draft is right; without it, requests have no drafts.
    pub(super) fn with_drafts(
        setup: &ControlSetup,
        recorder: Option<Recorder>,
        accept: Option<f64>,
    ) -> Self {
        let states = setup.build().expect("the setup is valid");
        let executor = FakeExecutor::new(FakeOptions {
            page_size: 1,
            n_pages: states.pools.pages.total_pages(),
            vocab_size: VOCAB,
            verify: true,
            n_states: states.pools.states.total_slots(),
            hidden_size: 0,
            faults: Vec::new(),
        });
        let executor = match setup.limits.windows {
            Some(windows) => executor.with_windows(windows),
            None => executor,
        };
        let executor = match accept {
            Some(accept) => executor.with_drafts(FakeDrafts {
                accept,
                seed: 3,
                eos_token_ids: setup.limits.eos_token_ids.clone(),
            }),
            None => executor,
        };
        Self {
            states: states.with_scheduler(|state| RecordedScheduler::new(state, recorder)),
            executor,
            steps: VecDeque::new(),
            n_submitted: 0,
            live: BTreeMap::new(),
            has_drafts: accept.is_some(),
        }
    }

    /// Ends this generation, and starts the next one, which continues the requests in flight.
    pub(super) fn successor(mut self, sink: &Arc<LogSink>, generation: u64) -> Self {
        let (live, n_submitted) = (std::mem::take(&mut self.live), self.n_submitted);
        // Writes its last records before the next generation writes its first.
        drop(self);
        let mut next = Self::new(sink, generation);
        next.n_submitted = n_submitted;
        next.live = live.clone();
        let resume = Resume {
            floor: IdFloor {
                step: generation << 20,
                sequences: generation << 10,
            },
            requests: live.into_values().collect(),
        };
        next.states.scheduler.resume(resume, 2.0);
        next.drive();
        next
    }

    pub(super) fn submit(
        &mut self,
        prompt: &[u32],
        max_new_tokens: u32,
    ) -> (RequestId, CancelFlag) {
        self.n_submitted += 1;
        let rid = RequestId::new(format!("r{}", self.n_submitted));
        let flag = CancelFlag::default();
        self.submit_as(rid.clone(), prompt, max_new_tokens, &flag);
        (rid, flag)
    }

    /// Submits a request whose variant (pooling, bypassing the cache and so on) depends on its number.
    pub(super) fn submit_as(
        &mut self,
        rid: RequestId,
        prompt: &[u32],
        max_new: u32,
        flag: &CancelFlag,
    ) {
        let request = Submission {
            rid,
            intake: IntakeId::new(self.n_submitted),
            prompt: prompt.into(),
            namespace: Namespace::new(None, Some("salt"))
                .with_long_rotation(self.n_submitted % 6 == 1),
            sampling: Arc::new(SamplingParams {
                max_new_tokens: max_new,
                sampling_seed: Some(self.n_submitted),
                logit_bias: [(3, -1.5)].into(),
                speculative_num_draft_tokens: self
                    .has_drafts
                    .then_some(self.n_submitted as u32 % 9),
                ..SamplingParams::default()
            }),
            logprobs: None,
            opening: Arc::default(),
            grammar: None,
            vectors: None,
            images: None,
            bypasses_cache: self.n_submitted % 7 == 3,
            pooling: (self.n_submitted % 5 == 2).then_some(Pooling::Mean),
            anchors: self.anchors(prompt),
            priority: Some(2),
            cancel: flag.clone(),
            submitted_s: 0.5,
            timeouts: RequestTimeouts {
                waiting_s: Some(1e9),
                running_s: self.n_submitted.is_multiple_of(9).then_some(20.0),
            },
            draft_texts: Default::default(),
        };
        let untold = Resumption {
            submission: request.clone(),
            told: Arc::default(),
            input_logprobs: 0,
            cached_tokens: None,
            retractions: 0,
            resumptions: 1,
            age_s: 1.0,
            running_s: None,
        };
        self.live.insert(request.intake, untold);
        self.states.scheduler.submit(request);
        self.drive();
    }

    /// Positions where prompts diverge; only models with states use them.
    fn anchors(&self, prompt: &[u32]) -> Arc<[u32]> {
        match self.states.pools.states.total_slots() {
            0 => Arc::default(),
            _ => [prompt.len() as u32 / 2, prompt.len() as u32].into(),
        }
    }

    pub(super) fn drive(&mut self) {
        while let Some(plan) = self.states.advance() {
            self.steps.push_back(*plan);
        }
        for update in self.states.scheduler.take_news() {
            self.note(&update);
        }
        self.states.scheduler.flush();
    }

    fn note(&mut self, update: &RequestTokens) {
        if update.end.is_some() {
            self.live.remove(&update.intake);
        } else if let Some(request) = self.live.get_mut(&update.intake) {
            let told = request.told.iter().chain(&update.tokens);
            request.told = told.copied().collect();
            request.cached_tokens = Some(update.cached_tokens);
            request.retractions = update.num_retractions;
            request.running_s = Some(0.5);
        }
    }

    pub(super) fn end_step(&mut self) {
        if let Some(plan) = self.steps.pop_front() {
            let result = self.executor.run(&plan);
            let micros = 700 * (plan.step.get() * 37 % 11 + 1);
            self.states.scheduler.step_took(plan.step, micros);
            self.states.scheduler.step_done(plan.step, result);
            self.drive();
        }
    }

    pub(super) fn drain(&mut self) {
        while !self.steps.is_empty() {
            self.end_step();
        }
        assert!(
            self.states.scheduler.is_idle(),
            "{:?}",
            self.states.scheduler.stats()
        );
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}
