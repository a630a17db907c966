//! The engine of the message log tests: a recorded scheduler without actors.

use super::*;
use souffleur_state::pooling::Pooling;

/// Scheduler, tree, pools and executor, which run one after the other in one thread.
pub(super) struct Engine {
    pub(super) states: ControlStates<RecordedScheduler>,
    pub(super) executor: FakeExecutor,
    pub(super) steps: VecDeque<StepPlan>,
    pub(super) n_submitted: u64,
}

impl Engine {
    pub(super) fn new(sink: &Arc<LogSink>, generation: u64) -> Self {
        Self::with_setup(&setup(), Some(sink.recorder(generation)))
    }

    pub(super) fn with_setup(setup: &ControlSetup, recorder: Option<Recorder>) -> Self {
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
        Self {
            states: states.with_scheduler(|state| RecordedScheduler::new(state, recorder)),
            executor,
            steps: VecDeque::new(),
            n_submitted: 0,
        }
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
        self.states.scheduler.submit(Submission {
            rid,
            intake: IntakeId::new(self.n_submitted),
            prompt: prompt.into(),
            namespace: Namespace::new(None, Some("salt"))
                .with_long_rotation(self.n_submitted % 6 == 1),
            sampling: Arc::new(SamplingParams {
                max_new_tokens: max_new,
                sampling_seed: Some(self.n_submitted),
                logit_bias: [(3, -1.5)].into(),
                ..SamplingParams::default()
            }),
            logprobs: None,
            opening: Arc::default(),
            grammar: None,
            vectors: None,
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
        });
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
        drop(self.states.scheduler.take_news());
        self.states.scheduler.flush();
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
