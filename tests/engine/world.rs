//! The engine of one test, by default with a fake executor, and a check that the engine has lost no pages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use souffleur_base::error::StepError;
use souffleur_base::ids::StepId;
use souffleur_config::EngineConfig;
use souffleur_engine::{Engine, EngineHandle, EngineParts, Generation, ModelInfo};
use souffleur_executor::fake::{FakeExecutor, FakeOptions, expected_output};
use souffleur_executor::vision::EncodedImage;
use souffleur_executor::{DeviceLost, Executor, Launch};
use souffleur_request::{Event, FinishReason, GenerateRequest, ImageSupport, Prompt};
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

pub const VOCAB: u32 = 500;
pub const EOS: u32 = 0;
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The shutdown deadline for requests in flight, all of which end earlier by themselves.
pub const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(60);

/// The configuration of a test's engine and of its fake executor.
#[derive(Clone)]
pub struct Build {
    pub config: EngineConfig,
    pub n_pages: usize,
    pub rows: usize,
    pub context: usize,
    pub faults: Vec<(StepId, StepError)>,
    /// The embedding size in the engine's configuration. The executor returns embeddings of `embedding_values` values.
    pub hidden_size: Option<usize>,
    pub embedding_values: usize,
    /// If set, every step waits for one message from this channel.
    pub gate: Option<crossbeam_channel::Receiver<()>>,
    /// If set, the executor accepts steps before the previous result is read, and keeps the maximum in flight here.
    pub max_in_flight: Option<Arc<AtomicUsize>>,
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
            max_in_flight: None,
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
            images: ImageSupport::Sequence,
            long_above: None,
            eos_token_ids: vec![EOS],
            generation: Default::default(),
            memory: None,
            kv_cache_dtype: None,
            attention_backend: None,
            kernel_path: None,
            double_sparsity: None,
            speculation: self.config.speculation().expect("the keys are valid"),
            formats: Default::default(),
            card: None,
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
        let (gate, max_in_flight) = (self.gate.clone(), self.max_in_flight.clone());
        let executor = move || {
            let gated = Gated {
                inner: Box::new(FakeExecutor::new(options.clone())),
                gate: gate.clone(),
            };
            Ok(match max_in_flight.clone() {
                None => Box::new(gated) as Box<dyn Executor>,
                Some(max_in_flight) => Box::new(Pipelined::new(gated, max_in_flight)),
            })
        };
        EngineParts {
            info,
            text: None,
            images: None,
            executor: Arc::new(executor),
            other_executors: Vec::new(),
            gpus: Vec::new(),
            store: None,
            vision: None,
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
            // The gate is open once the sender is dropped.
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

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.inner.take_encoded()
    }

    fn forget_unwanted(&mut self) {
        self.inner.forget_unwanted();
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}

/// An executor that works like a device: `launch` queues a step, and `finish` runs the step.
struct Pipelined {
    inner: Gated<FakeExecutor>,
    in_flight: VecDeque<StepPlan>,
    max_in_flight: Arc<AtomicUsize>,
    polls: u32,
}

impl Pipelined {
    /// The number of polls after which a step counts as finished.
    const POLLS: u32 = 200;

    fn new(inner: Gated<FakeExecutor>, max_in_flight: Arc<AtomicUsize>) -> Self {
        Self {
            inner,
            in_flight: VecDeque::new(),
            max_in_flight,
            polls: 0,
        }
    }
}

impl Executor for Pipelined {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.inner.run(plan)
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        if let Some(refused) = self.inner.inner.refusal(plan.step) {
            return Err(refused);
        }
        self.in_flight.push_back(plan.clone());
        self.max_in_flight
            .fetch_max(self.in_flight.len(), Ordering::Relaxed);
        Ok(Launch::UnderWay)
    }

    fn is_finished(&mut self) -> bool {
        self.polls += 1;
        self.polls >= Self::POLLS
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.polls = 0;
        let plan = self.in_flight.pop_front().expect("a step is in flight");
        self.inner.run(&plan)
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.in_flight.clear();
        self.polls = 0;
        self.inner.reset()
    }
}

pub struct World {
    pub engine: EngineHandle,
}

impl World {
    pub fn generate(&self, request: GenerateRequest) -> Generation {
        self.engine.generate(request).expect("the engine runs")
    }

    /// Waits until the engine has no requests, then checks that no page is lost.
    pub async fn assert_no_leaks(&self) -> EngineStats {
        let doors = self.engine.doors().expect("the engine runs");
        within(doors.drain.send(souffleur_actors::messages::Drain))
            .await
            .expect("the engine drains");
        let stats = self.engine.stats().await.expect("stats");
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        stats
    }

    /// Sends requests to an engine whose gate is closed. Returns when the first request runs and the engine has
    /// received all requests.
    ///
    /// This order forces a retraction. The engine reserves pages for the whole outputs of requests that it admits
    /// together, but few pages for the rest of a running request's output. So it admits the second request while the
    /// first runs, although both outputs do not fit into the pool.
    pub async fn send_first_alone(
        &self,
        requests: impl IntoIterator<Item = GenerateRequest>,
    ) -> Vec<Generation> {
        let mut requests = requests.into_iter();
        let first = requests.next().expect("there is a first request");
        let mut sent = vec![self.generate(first)];
        self.until(|stats| stats.running_requests == 1).await;
        sent.extend(requests.map(|request| self.generate(request)));
        self.until_requests(sent.len()).await;
        sent
    }

    /// Waits until this many requests run or wait.
    pub async fn until_requests(&self, requests: usize) {
        self.until(|stats| stats.running_requests + stats.waiting_requests == requests)
            .await;
    }

    pub async fn until(&self, condition: impl Fn(&EngineStats) -> bool) {
        within(async {
            while !condition(&self.engine.stats().await.expect("the engine runs")) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub async fn stop(self) {
        within(self.engine.shutdown(SHUTDOWN_DEADLINE)).await;
    }
}

/// Awaits a future, and panics if it takes too long.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIME_LIMIT, future)
        .await
        .expect("the future completes in time")
}

pub fn request(prompt: &[u32], max_new_tokens: u32, seed: u64) -> GenerateRequest {
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt.into()));
    request.sampling.max_new_tokens = max_new_tokens;
    request.sampling.sampling_seed = Some(seed);
    request
}

/// Everything that the engine sent for one request.
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
            .expect("the stream ends with a terminal event")
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

/// The output tokens and the finish reason that a request must get under any schedule.
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
