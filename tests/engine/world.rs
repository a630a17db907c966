//! One engine for each test, on a fake executor, that must be whole when the test ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use souffleur_base::error::StepError;
use souffleur_base::ids::StepId;
use souffleur_config::EngineConfig;
use souffleur_engine::{Engine, EngineHandle, EngineParts, Generation, ModelInfo};
use souffleur_executor::fake::{FakeExecutor, FakeOptions, expected_output};
use souffleur_executor::{Executor, Launch};
use souffleur_request::{Event, FinishReason, GenerateRequest, Prompt};
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

pub const VOCAB: u32 = 500;
pub const EOS: u32 = 0;
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for requests in flight when an engine is stopped: no test stops a request that does not end by itself.
pub const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(60);

/// The parts of a world.
#[derive(Clone)]
pub struct Build {
    pub config: EngineConfig,
    pub n_pages: usize,
    pub rows: usize,
    pub context: usize,
    pub faults: Vec<(StepId, StepError)>,
    /// Values of an embedding: the size in the engine's configuration, and the size that the executor returns.
    pub hidden_size: Option<usize>,
    pub embedding_values: usize,
    /// Every step waits for one token of this gate, if there is one.
    pub gate: Option<crossbeam_channel::Receiver<()>>,
    /// Steps are launched before the previous result is read; counts the steps in flight.
    pub ahead: Option<Arc<AtomicUsize>>,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            config: EngineConfig::default(),
            n_pages: 4096,
            rows: 64,
            context: 2048,
            faults: Vec::new(),
            hidden_size: None,
            embedding_values: 0,
            gate: None,
            ahead: None,
        }
    }
}

impl Build {
    pub fn parts(&self) -> EngineParts {
        let page_size = self.config.page_size as usize;
        let info = ModelInfo {
            served_model_name: "fake".to_owned(),
            model_path: "fake".into(),
            context_length: self.context,
            max_total_tokens: self.n_pages * page_size,
            page_size,
            max_running_requests: self.rows,
            vocab_size: VOCAB as usize,
            hidden_size: self.hidden_size,
            long_above: None,
            eos_token_ids: vec![EOS],
            generation: Default::default(),
            memory: None,
            kv_cache_dtype: None,
            attention_backend: None,
            kernel_path: None,
            double_sparsity: None,
        };
        let options = FakeOptions {
            page_size,
            n_pages: self.n_pages,
            vocab_size: VOCAB,
            verify: true,
            n_states: 0,
            hidden_size: self.embedding_values,
            faults: self.faults.clone(),
        };
        let (gate, ahead) = (self.gate.clone(), self.ahead.clone());
        let executor = move || {
            let gated = Gated {
                inner: Box::new(FakeExecutor::new(options.clone())),
                gate: gate.clone(),
            };
            Ok(match ahead.clone() {
                None => Box::new(gated) as Box<dyn Executor>,
                Some(most) => Box::new(Ahead::new(gated, most)),
            })
        };
        EngineParts {
            info,
            text: None,
            executor: Arc::new(executor),
            store: None,
        }
    }

    pub fn start(self) -> World {
        let parts = self.parts();
        let engine = Engine::start_with(self.config, parts).expect("the engine starts");
        World { engine }
    }
}

/// An executor whose steps a test releases one by one.
pub struct Gated<E: ?Sized> {
    pub inner: Box<E>,
    pub gate: Option<crossbeam_channel::Receiver<()>>,
}

impl<E: ?Sized> Gated<E> {
    fn wait(&self) {
        if let Some(gate) = &self.gate {
            // A dropped gate is open.
            let _ = gate.recv();
        }
    }
}

impl<E: Executor + ?Sized> Executor for Gated<E> {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.wait();
        self.inner.run(plan)
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.wait();
        self.inner.launch(plan)
    }

    fn is_finished(&mut self) -> bool {
        self.inner.is_finished()
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.inner.finish()
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }
}

/// An executor that works like a device: a step runs when its result is read, or after some polls.
struct Ahead {
    inner: Gated<FakeExecutor>,
    under_way: VecDeque<StepPlan>,
    /// The maximum number of steps in flight.
    most: Arc<AtomicUsize>,
    glances: u32,
}

impl Ahead {
    /// Polls of a step before it has ended.
    const GLANCES: u32 = 200;

    fn new(inner: Gated<FakeExecutor>, most: Arc<AtomicUsize>) -> Self {
        Self {
            inner,
            under_way: VecDeque::new(),
            most,
            glances: 0,
        }
    }
}

impl Executor for Ahead {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.inner.run(plan)
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        if let Some(refused) = self.inner.inner.refusal(plan.step) {
            return Err(refused);
        }
        self.under_way.push_back(plan.clone());
        self.most.fetch_max(self.under_way.len(), Ordering::Relaxed);
        Ok(Launch::UnderWay)
    }

    fn is_finished(&mut self) -> bool {
        self.glances += 1;
        self.glances >= Self::GLANCES
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.glances = 0;
        let plan = self.under_way.pop_front().expect("a step is under way");
        self.inner.run(&plan)
    }
}

pub struct World {
    pub engine: EngineHandle,
}

impl World {
    pub fn generate(&self, request: GenerateRequest) -> Generation {
        self.engine.generate(request).expect("the door is open")
    }

    /// Waits until nothing is inside, then checks that the pool is whole.
    pub async fn assert_whole(&self) -> EngineStats {
        let doors = self.engine.doors().expect("the engine lives");
        within(doors.drain.send(souffleur_actors::messages::Drain))
            .await
            .expect("drained");
        let stats = self.engine.stats().await.expect("stats");
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        stats
    }

    /// Sends requests to an engine whose gate is closed. The first one has the first step to itself; when this returns,
    /// the others wait.
    ///
    /// The engine's reservations depend on it: whole outputs for requests that it admits together, next to nothing for the
    /// output of one that runs. So the first two run together although they do not fit together, and one of them is
    /// retracted, while the second fits together with the prompt of the first.
    pub async fn send_behind_first(
        &self,
        requests: impl IntoIterator<Item = GenerateRequest>,
    ) -> Vec<Generation> {
        let mut requests = requests.into_iter();
        let first = requests.next().expect("there is a first request");
        let mut sent = vec![self.generate(first)];
        self.until(|stats| stats.running_requests == 1).await;
        sent.extend(requests.map(|request| self.generate(request)));
        self.until_inside(sent.len()).await;
        sent
    }

    /// Waits until this many requests run or wait.
    pub async fn until_inside(&self, requests: usize) {
        self.until(|stats| stats.running_requests + stats.waiting_requests == requests)
            .await;
    }

    /// Waits until the engine's statistics satisfy `is_so`.
    pub async fn until(&self, is_so: impl Fn(&EngineStats) -> bool) {
        within(async {
            while !is_so(&self.engine.stats().await.expect("the engine lives")) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub async fn stop(self) {
        within(self.engine.shutdown(SHUTDOWN_DEADLINE)).await;
    }
}

/// Fails instead of hanging.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it ends in time")
}

pub fn request(prompt: &[u32], max_new_tokens: u32, seed: u64) -> GenerateRequest {
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt.into()));
    request.sampling.max_new_tokens = max_new_tokens;
    request.sampling.sampling_seed = Some(seed);
    request
}

/// Everything that one request sent.
#[derive(Debug)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    pub end: Event,
    pub cached_tokens: u32,
}

pub async fn collect(mut generation: Generation) -> Outcome {
    let mut tokens = Vec::new();
    loop {
        match within(generation.next())
            .await
            .expect("a terminal event comes first")
        {
            Event::Delta(delta) => tokens.extend(delta.tokens),
            Event::Finished(end) => {
                tokens.extend(&end.delta.tokens);
                let usage = end.delta.usage;
                return Outcome {
                    tokens,
                    cached_tokens: usage.cached_tokens,
                    end: Event::Finished(end),
                };
            }
            end => {
                return Outcome {
                    tokens,
                    end,
                    cached_tokens: 0,
                };
            }
        }
    }
}

/// The answer that a request must get under any schedule: tokens and reason.
pub fn expected(prompt: &[u32], max_new_tokens: u32, seed: u64) -> (Vec<u32>, FinishReason) {
    let mut tokens = expected_output(prompt, seed, max_new_tokens as usize, VOCAB);
    match tokens.iter().position(|token| *token == EOS) {
        Some(place) => {
            tokens.truncate(place + 1);
            (tokens, FinishReason::StopToken(EOS))
        }
        None => (tokens, FinishReason::Length { max_new_tokens }),
    }
}

pub fn assert_finished(outcome: &Outcome, prompt: &[u32], max_new_tokens: u32, seed: u64) {
    let (tokens, reason) = expected(prompt, max_new_tokens, seed);
    assert_eq!(outcome.tokens, tokens);
    match &outcome.end {
        Event::Finished(end) => assert_eq!(end.reason, reason),
        other => panic!("ended with {other:?}"),
    }
}
