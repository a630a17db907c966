//! Starts an engine on its own thread or on a host's Arbiter, and returns the handle through which hosts use it.
//!
//! An engine installs no recorder, subscriber, panic hook or signal handler, and needs no runtime. To record the
//! engine's metrics, install a recorder before starting the engine.

mod card;
mod chaos;
mod generation;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod handle;
mod image_sizes;
mod images;
pub mod memory;
mod origin;
mod parts;
mod pins;
mod progress;
mod replicas;
mod speculation;
pub mod store;
mod text;
mod threads;
mod tower;
mod tower_file;
mod view;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use actix::Actor;
use actix_rt::{ArbiterHandle, System};
use tokio::sync::oneshot;

use souffleur_actors::status::UnitWatch;
use souffleur_actors::unit::Blueprint;
use souffleur_actors::watchdog::{AddressSlot, FailureWatch, StartUnit, StopUnit, Watchdog};
use souffleur_base::error::StartError;
use souffleur_chaos::Chaos;
use souffleur_config::EngineConfig;
use souffleur_kv_events::KvEventsOutlet;
use souffleur_metrics::{Capacity, RequestMetrics};
use souffleur_request::admission::Admission;

pub use card::ModelCard;
pub use generation::{Canceller, Generation};
pub use handle::EngineHandle;
pub use images::image_reader;
pub use parts::{EngineParts, ModelInfo};
pub use pins::SoftPin;
pub use progress::Progress;
pub use replicas::GpuShare;
pub use threads::{ReplicaThreads, compute_threads};
pub use view::TreeReader;

use handle::Inner;

/// Starts engines.
///
/// ```no_run
/// use souffleur_config::EngineConfig;
/// use souffleur_engine::Engine;
/// use souffleur_request::{GenerateRequest, Prompt};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// // The model inside this library; `model_path` names another one.
/// let config = EngineConfig::default();
/// let engine = Engine::start(config)?;
/// let mut generation = engine.generate(GenerateRequest::new(Prompt::Text("Hello".into())))?;
/// while let Some(event) = generation.next().await {
///     println!("{event:?}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct Engine;

impl Engine {
    /// Loads the model and starts the engine on its own thread and actix System. Blocks until it is ready; needs no
    /// runtime in the caller.
    ///
    /// # Errors
    /// The configuration or the model cannot be used. No KV memory is allocated then.
    pub fn start(config: EngineConfig) -> Result<EngineHandle, StartError> {
        let parts = EngineParts::from_model(&config, Progress::silent())?;
        Self::start_with(config, parts)
    }

    /// As [`Engine::start`], with parts that the caller built, for example with another executor.
    pub fn start_with(
        config: EngineConfig,
        parts: EngineParts,
    ) -> Result<EngineHandle, StartError> {
        let began = Instant::now();
        config.validate()?;
        let blueprint = parts.blueprint(&config)?;
        let admission = blueprint.tokenizer.admission.clone();
        let (kv_events, chaos) = (blueprint.kv_events_outlet(), blueprint.chaos.clone());
        let doors = AddressSlot::default();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread_doors = doors.clone();
        let thread = std::thread::Builder::new()
            .name("souffleur-engine".to_owned())
            .spawn(move || {
                System::new().block_on(async move {
                    match launch(blueprint, thread_doors).await {
                        Err(error) => drop(ready.send(Err(error))),
                        Ok((supervisor, stopped)) => {
                            let _ = ready.send(Ok(supervisor));
                            // Completes when the watchdog stops or dies.
                            let _ = stopped.await;
                        }
                    }
                });
            });
        let thread = thread.map_err(|error| {
            StartError::Thread(format!(
                "its thread could not be started: {error}; raise the limit of threads (ulimit -u)"
            ))
        })?;
        let died = |_| {
            StartError::Thread(
                "the engine's thread ended before the actors ran, see the log".to_owned(),
            )
        };
        let supervisor = is_ready.recv().map_err(died)??;
        let launch = Launch {
            admission,
            kv_events,
            chaos,
            doors,
            supervisor,
            thread: Some(thread),
        };
        Ok(EngineHandle::new(new_inner(&config, parts, launch, began)))
    }

    /// Loads the model and starts the actors on an Arbiter of the host's System. Files are read on other threads, so
    /// the Arbiter keeps running, and may be the one that runs this future.
    ///
    /// # Errors
    /// As [`Engine::start`]; [`StartError::Thread`] when the Arbiter has stopped.
    pub async fn start_in(
        arbiter: &ArbiterHandle,
        config: EngineConfig,
    ) -> Result<EngineHandle, StartError> {
        let began = Instant::now();
        let ready = on_new_thread(move || {
            let parts = EngineParts::from_model(&config, Progress::silent())?;
            EngineSetup::new(config, parts)
        });
        Self::adopt(arbiter, ready.await?, began).await
    }

    /// As [`Engine::start_in`], with parts that the caller built.
    pub async fn start_in_with(
        arbiter: &ArbiterHandle,
        config: EngineConfig,
        parts: EngineParts,
    ) -> Result<EngineHandle, StartError> {
        let began = Instant::now();
        // Preparing opens files, such as the message log.
        let ready = on_new_thread(move || EngineSetup::new(config, parts));
        Self::adopt(arbiter, ready.await?, began).await
    }

    async fn adopt(
        arbiter: &ArbiterHandle,
        setup: EngineSetup,
        began: Instant,
    ) -> Result<EngineHandle, StartError> {
        let EngineSetup {
            config,
            parts,
            blueprint,
        } = setup;
        let admission = blueprint.tokenizer.admission.clone();
        let (kv_events, chaos) = (blueprint.kv_events_outlet(), blueprint.chaos.clone());
        let doors = AddressSlot::default();
        let (ready, is_ready) = oneshot::channel();
        let arbiter_doors = doors.clone();
        arbiter.spawn(async move {
            let launched = launch(blueprint, arbiter_doors).await;
            let unclaimed = ready.send(launched.map(|(supervisor, _)| supervisor));
            if let Err(Ok(supervisor)) = unclaimed {
                // The host gave up waiting.
                supervisor.watchdog.do_send(StopUnit);
            }
        });
        let died = |_| StartError::Thread("the host's Arbiter has stopped".to_owned());
        let supervisor = is_ready.await.map_err(died)??;
        let launch = Launch {
            admission,
            kv_events,
            chaos,
            doors,
            supervisor,
            thread: None,
        };
        Ok(EngineHandle::new(new_inner(&config, parts, launch, began)))
    }
}

/// An engine before its start: all files are read except the weights.
struct EngineSetup {
    config: EngineConfig,
    parts: EngineParts,
    blueprint: Blueprint,
}

impl EngineSetup {
    fn new(config: EngineConfig, parts: EngineParts) -> Result<Self, StartError> {
        config.validate()?;
        let blueprint = parts.blueprint(&config)?;
        Ok(Self {
            config,
            parts,
            blueprint,
        })
    }
}

async fn on_new_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let (done, is_done) = oneshot::channel();
    let thread = std::thread::Builder::new().name("souffleur-start".to_owned());
    let spawned = thread.spawn(move || {
        // Sending fails if the host has stopped waiting.
        let _ = done.send(work());
    });
    spawned.map_err(|error| {
        StartError::Thread(format!(
            "the thread that reads the model could not be started: {error}; raise the limit of threads (ulimit -u)"
        ))
    })?;
    let died =
        |_| StartError::Thread("the thread that reads the model panicked, see the log".to_owned());
    is_done.await.map_err(died)?
}

struct Supervisor {
    watchdog: actix::Addr<Watchdog>,
    failure: FailureWatch,
    status: UnitWatch,
}

type Supervision = (Supervisor, oneshot::Receiver<()>);

async fn launch(blueprint: Blueprint, doors: AddressSlot) -> Result<Supervision, StartError> {
    let (stopped, is_stopped) = oneshot::channel();
    let watchdog = Watchdog::new(Arc::new(blueprint), doors, stopped);
    let (failure, status) = (watchdog.failure(), watchdog.status());
    let watchdog = watchdog.start();
    let started = watchdog.send(StartUnit).await;
    started
        .map_err(|error| StartError::Thread(format!("the watchdog did not answer: {error}")))??;
    let supervisor = Supervisor {
        watchdog,
        failure,
        status,
    };
    Ok((supervisor, is_stopped))
}

struct Launch {
    admission: Arc<Admission>,
    kv_events: Option<KvEventsOutlet>,
    chaos: Chaos,
    doors: AddressSlot,
    supervisor: Supervisor,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn new_inner(config: &EngineConfig, parts: EngineParts, launch: Launch, began: Instant) -> Inner {
    record_capacity(&parts.info, began);
    let is_on_cpu = parts.info.kernel_path.is_some();
    Inner {
        metrics: RequestMetrics::register(&parts.info.served_model_name),
        model: parts.info,
        replicas: config.dp_size,
        ranks: config.tp_size,
        compute_threads: is_on_cpu.then(|| compute_threads(config)),
        text: parts.text,
        images: parts.images,
        admission: launch.admission,
        kv_events: launch.kv_events,
        channel_events: config.client_channel_events,
        max_logprob_entries: config.max_logprob_entries,
        max_prefill_tokens: config.max_prefill_tokens,
        request_limits: config.request_limits(),
        doors: launch.doors,
        watchdog: launch.supervisor.watchdog,
        failure: launch.supervisor.failure,
        status: launch.supervisor.status,
        store_bytes: parts.store.map(|store| store.config.disk_bytes),
        encodes_images: parts.vision.is_some(),
        thread: RwLock::new(launch.thread),
        next_soft_pin: AtomicU64::new(1),
        chaos: launch.chaos,
    }
}

fn record_capacity(model: &ModelInfo, began: Instant) {
    if let Some(memory) = &model.memory {
        let capacity = Capacity {
            context_tokens: model.context_length,
            weights_bytes: memory.budget.weights_bytes,
            kv_bytes: memory.kv_bytes,
            start_seconds: began.elapsed().as_secs_f64(),
        };
        capacity.record(&model.served_model_name);
    }
}
