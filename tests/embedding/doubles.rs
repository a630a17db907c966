//! Test doubles: executors that fail on purpose, and actors that record messages. Also starts the bundled model.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use actix::{Actor, Context, Handler, Message, Recipient};
use crossbeam_channel::Receiver;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, EngineParts};
use souffleur::error::{LoadError, StepError};
use souffleur::executor::{DeviceLost, Executor};
use souffleur::request::{ChatPrompt, GenerateRequest, Prompt};
use souffleur::state::step::{StepOutput, StepPlan};
use tokio::sync::mpsc;

use super::world::Build;

/// A fault that an executor has at one step, once in a test.
#[derive(Clone)]
pub enum Fault {
    Panic,
    /// A panic after which the executor cannot be used.
    DeviceLost,
    Reject,
}

/// Parts whose first executor has a fault at step `at`; later executors work.
pub fn faulty_parts(build: &Build, at: u64, fault: Fault) -> EngineParts {
    with_fault(build.parts(), at, fault)
}

/// As [`faulty_parts`], for any parts.
pub fn with_fault(mut parts: EngineParts, at: u64, fault: Fault) -> EngineParts {
    let (make, is_due) = (parts.executor.clone(), Arc::new(AtomicBool::new(true)));
    parts.executor = Arc::new(move || {
        let inner = make()?;
        Ok(Box::new(FaultyExecutor {
            inner,
            at,
            fault: fault.clone(),
            is_due: is_due.clone(),
            is_lost: false,
        }))
    });
    parts
}

struct FaultyExecutor {
    inner: Box<dyn Executor>,
    at: u64,
    fault: Fault,
    is_due: Arc<AtomicBool>,
    is_lost: bool,
}

impl Executor for FaultyExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        if plan.step.get() == self.at && self.is_due.swap(false, Ordering::SeqCst) {
            match self.fault {
                Fault::Panic => panic!("a fault at step {}", self.at),
                Fault::DeviceLost => {
                    self.is_lost = true;
                    panic!("a fault at step {}", self.at);
                }
                Fault::Reject => return Err(StepError::Rejected("a fault".to_owned())),
            }
        }
        self.inner.run(plan)
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        if self.is_lost {
            return Err(DeviceLost("there is no device".to_owned()));
        }
        self.inner.reset()
    }
}

/// Parts of two replicas that lose their devices at step 3, the second one not before the first one is loaded again.
/// Once both are down, `reload` is called with 0 for the first and, on another thread, with 1 for the second. A replica
/// is down while `reload` waits.
pub fn losing_parts(
    build: &Build,
    reload: impl Fn(usize) -> Result<(), LoadError> + Send + Sync + 'static,
) -> EngineParts {
    let mut parts = build.parts();
    let (make, made) = (parts.executor.clone(), AtomicUsize::new(0));
    let losses = [(); 2].map(|()| crossbeam_channel::unbounded());
    parts.executor = Arc::new(move || {
        let inner = make()?;
        let [(first, is_first_lost), (second, is_second_lost)] = &losses;
        let waits_for = match made.fetch_add(1, Ordering::SeqCst) {
            0 => None,
            1 => Some(is_first_lost.clone()),
            2 => {
                let _ = first.send(());
                let _ = is_second_lost.recv();
                reload(0)?;
                return Ok(inner);
            }
            3 => {
                let _ = second.send(());
                reload(1)?;
                return Ok(inner);
            }
            _ => return Ok(inner),
        };
        Ok(Box::new(LosingExecutor {
            inner,
            waits_for,
            is_lost: false,
        }))
    });
    parts
}

struct LosingExecutor {
    inner: Box<dyn Executor>,
    waits_for: Option<Receiver<()>>,
    is_lost: bool,
}

impl Executor for LosingExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        if plan.step.get() == 3 {
            if let Some(waits_for) = &self.waits_for {
                let _ = waits_for.recv();
            }
            self.is_lost = true;
            panic!("a fault at step 3");
        }
        self.inner.run(plan)
    }

    /// The two losses have different causes: otherwise the requests of both become suspects.
    fn reset(&mut self) -> Result<(), DeviceLost> {
        if self.is_lost {
            let is_second = self.waits_for.is_some();
            return Err(DeviceLost(format!("lost, is_second={is_second}")));
        }
        self.inner.reset()
    }
}

/// Parts whose executors send a message when they are dropped, at the end of their thread.
pub fn notifying_parts(build: &Build) -> (EngineParts, std::sync::mpsc::Receiver<()>) {
    let (notify, dropped) = std::sync::mpsc::channel();
    let mut parts = build.parts();
    let make = parts.executor.clone();
    parts.executor = Arc::new(move || {
        Ok(Box::new(NotifyingExecutor {
            inner: make()?,
            notify: notify.clone(),
        }))
    });
    (parts, dropped)
}

struct NotifyingExecutor {
    inner: Box<dyn Executor>,
    notify: std::sync::mpsc::Sender<()>,
}

impl Executor for NotifyingExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.inner.run(plan)
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}

impl Drop for NotifyingExecutor {
    fn drop(&mut self) {
        let _ = self.notify.send(());
    }
}

/// A subscriber that panics once, at an event that an actor logs on this thread.
pub struct PanickingSubscriber {
    target: &'static str,
    events_left: AtomicUsize,
}

impl PanickingSubscriber {
    /// Panics at the event with this number, from 1, of a module.
    pub fn new(target: &'static str, event: usize) -> Self {
        Self {
            target,
            events_left: AtomicUsize::new(event),
        }
    }
}

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == self.target
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        if self.events_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            panic!("inside a handler of {}", self.target);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

pub struct Probe<M>(mpsc::UnboundedSender<M>);

impl<M: Message<Result = ()> + Send + Unpin + 'static> Probe<M> {
    pub fn spawn() -> (Recipient<M>, mpsc::UnboundedReceiver<M>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender).start().recipient(), receiver)
    }
}

impl<M: Message<Result = ()> + Send + Unpin + 'static> Actor for Probe<M> {
    type Context = Context<Self>;
}

impl<M: Message<Result = ()> + Send + Unpin + 'static> Handler<M> for Probe<M> {
    type Result = ();

    fn handle(&mut self, message: M, _: &mut Context<Self>) {
        let _ = self.0.send(message);
    }
}

pub fn start_bundled(mut config: EngineConfig) -> EngineHandle {
    config.model_path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/souffleur-tiny");
    config.max_total_tokens = Some(4096);
    config.threads = 1;
    Engine::start(config).expect("the bundled model loads")
}

/// A question whose answer has `max_new_tokens` tokens.
pub fn question(max_new_tokens: u32) -> GenerateRequest {
    let mut request = GenerateRequest::new(Prompt::Chat(Arc::new(ChatPrompt {
        messages: serde_json::json!([{ "role": "user", "content": "Tell me a story." }]),
        tools: None,
        template_kwargs: Default::default(),
        add_generation_prompt: true,
        continue_final_message: false,
        known: None,
        images: Vec::new(),
    })));
    request.sampling.temperature = 0.0;
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = max_new_tokens;
    request
}
