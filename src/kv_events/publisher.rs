//! The thread that mirrors the radix tree and publishes its block events.
//!
//! The thread belongs to the engine and outlives restarts of the actors: the first change of a new generation's tree is
//! [`CacheChange::Cleared`], and queued changes of the previous generation are dropped.
//!
//! [`CacheChange::Cleared`]: souffleur_state::cache::changes::CacheChange::Cleared

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use crossbeam_channel::RecvTimeoutError;
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, LocalSet, yield_now};

use super::batch::{EventBatches, KvEvent};
use super::config::{Endpoint, KvEventsConfig, invalid_config};
use super::feed::{ChangeFeed, ChangeList, EmptiedList, MAX_QUEUED_LISTS};
use super::listener::BoundEndpoint;
use super::mirror::BlockMirror;
use super::ring::{Ring, RingLimits};
use super::sockets::{self, Sockets};
use super::subscription::{self, Reader, Subscriptions};
use super::wire;
use souffleur_base::error::ConfigError;
use souffleur_metrics::{DeathMetrics, KvEventMetrics};
use souffleur_state::pool::pages::PageSize;

/// The thread's name in the death metric.
const NAME: &str = "kv_events";
/// The longest time that `drop` waits for the thread to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The publisher of an engine. Dropping it stops the thread.
pub struct KvEventPublisher {
    queue: mpsc::Sender<ChangeList>,
    max_changes: usize,
    metrics: KvEventMetrics,
    outlet: KvEventsOutlet,
    stop: Option<oneshot::Sender<()>>,
    /// Disconnects when the thread ends.
    ended: crossbeam_channel::Receiver<io::Result<()>>,
}

/// The publisher's endpoints and parameters, as SGLang's `/server_info` reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvEventsInfo {
    /// Always `zmq`.
    pub publisher: &'static str,
    /// The configured host, where `*` means all addresses of the machine; the whole endpoint for a Unix socket.
    pub endpoint_host: String,
    /// The port of the PUB socket; 0 for a Unix socket.
    pub endpoint_port_base: u16,
    pub topic: String,
    pub block_size: usize,
    /// Data-parallel ranks: always 1.
    pub dp_size: usize,
    /// The port of the ROUTER socket, if it is a TCP socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_endpoint_port_base: Option<u16>,
    /// The whole address of the ROUTER socket, if it is a Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_endpoint: Option<String>,
}

#[derive(Clone, Debug)]
pub struct KvEventsOutlet {
    pub info: KvEventsInfo,
    /// Subscribes readers in this process.
    pub subscriptions: Subscriptions,
}

struct ThreadInputs {
    config: KvEventsConfig,
    page_size: PageSize,
    queue: mpsc::Receiver<ChangeList>,
    readers: mpsc::Receiver<Reader>,
    stopped: oneshot::Receiver<()>,
    subscribers: Option<BoundEndpoint>,
    replays: Option<BoundEndpoint>,
    metrics: KvEventMetrics,
}

fn log_start(info: &KvEventsInfo) {
    tracing::info!(
        host = info.endpoint_host,
        port = info.endpoint_port_base,
        replay_port = info.replay_endpoint_port_base,
        block_size = info.block_size,
        "publishing KV events"
    );
}

fn info(
    config: &KvEventsConfig,
    subscribers: Option<&BoundEndpoint>,
    replays: Option<&BoundEndpoint>,
) -> KvEventsInfo {
    let (endpoint_host, port) = match &config.endpoint {
        Endpoint::Tcp { host, port } => (host.clone(), *port),
        ipc @ Endpoint::Ipc { .. } => (ipc.to_string(), 0),
    };
    let is_ipc = |endpoint: &&Endpoint| matches!(endpoint, Endpoint::Ipc { .. });
    KvEventsInfo {
        publisher: "zmq",
        endpoint_host,
        endpoint_port_base: subscribers.and_then(BoundEndpoint::port).unwrap_or(port),
        topic: config.topic.clone(),
        block_size: config.block_size,
        dp_size: 1,
        replay_endpoint_port_base: replays.and_then(BoundEndpoint::port),
        replay_endpoint: config
            .replay_endpoint
            .as_ref()
            .filter(is_ipc)
            .map(ToString::to_string),
    }
}

impl KvEventPublisher {
    /// Opens the sockets and starts the thread.
    ///
    /// # Errors
    /// The endpoint cannot be bound, or the thread or its runtime cannot be started.
    pub fn start(config: KvEventsConfig, page_size: PageSize) -> Result<Self, ConfigError> {
        let subscribers = match config.endpoint.remote() {
            None => Some(BoundEndpoint::bind("endpoint", &config.endpoint)?),
            Some(_) => None,
        };
        let replay = config.replay_endpoint.as_ref();
        let replays = replay
            .map(|endpoint| BoundEndpoint::bind("replay_endpoint", endpoint))
            .transpose()?;
        let metrics = KvEventMetrics::register();
        let info = info(&config, subscribers.as_ref(), replays.as_ref());
        let (queue, queued) = mpsc::channel(MAX_QUEUED_LISTS);
        let (stop, stopped) = oneshot::channel();
        let (running, ended) = crossbeam_channel::bounded(1);
        let max_changes = config.max_queue_size;
        let (subscriptions, readers) = Subscriptions::new();
        let inputs = ThreadInputs {
            config,
            page_size,
            queue: queued,
            stopped,
            subscribers,
            replays,
            readers,
            metrics: metrics.clone(),
        };
        let thread = std::thread::Builder::new().name("souffleur-events".to_owned());
        let deaths = DeathMetrics::register(&[NAME]);
        let spawned = thread.spawn(move || {
            let watch = DeathWatch(Some(deaths));
            // Created in this thread, since a runtime must not be dropped inside another runtime.
            let runtime = Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    let _ = running.send(Ok(()));
                    run(&runtime, inputs, watch);
                    // Does not wait for DNS lookups, which may outlast every timeout.
                    runtime.shutdown_background();
                }
                Err(error) => {
                    watch.disarm();
                    drop(running.send(Err(error)));
                }
            }
            drop(running);
        });
        spawned.map_err(|error| {
            invalid_config(format!(
                "is on, but the KV event publisher's thread failed to start: {error}; raise the limit of threads \
                 (ulimit -u)"
            ))
        })?;
        if let Ok(Err(error)) = ended.recv() {
            return Err(invalid_config(format!(
                "is on, but the KV event publisher failed to start: {error}"
            )));
        }
        log_start(&info);
        Ok(Self {
            queue,
            max_changes,
            metrics,
            outlet: KvEventsOutlet {
                info,
                subscriptions,
            },
            stop: Some(stop),
            ended,
        })
    }

    /// Creates the feed for the tree of one generation of actors. Its first list of changes makes the publisher ignore
    /// the feeds of earlier generations.
    pub fn feed(&self, generation: u64) -> ChangeFeed {
        ChangeFeed::new(
            generation,
            self.queue.clone(),
            self.max_changes,
            self.metrics.clone(),
        )
    }

    pub fn info(&self) -> &KvEventsInfo {
        &self.outlet.info
    }

    /// Access to the published events; may outlive the publisher.
    pub fn outlet(&self) -> &KvEventsOutlet {
        &self.outlet
    }
}

impl Drop for KvEventPublisher {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let waited = self.ended.recv_timeout(STOP_TIMEOUT);
        if matches!(waited, Err(RecvTimeoutError::Timeout)) {
            tracing::warn!("KV events may be lost: the publisher did not stop in {STOP_TIMEOUT:?}");
        }
    }
}

/// Counts and logs the thread's death, unless disarmed.
struct DeathWatch(Option<DeathMetrics>);

impl DeathWatch {
    fn disarm(mut self) {
        self.0 = None;
    }

    fn failed(mut self, error: &io::Error) {
        if let Some(deaths) = self.0.take() {
            deaths.died(NAME);
            tracing::error!(%error, "the KV event publisher died: nothing is published until the server is restarted");
        }
    }
}

impl Drop for DeathWatch {
    fn drop(&mut self) {
        if let Some(deaths) = self.0.take() {
            deaths.died(NAME);
            let panicked = std::thread::panicking();
            tracing::error!(
                panicked,
                "the KV event publisher died: nothing is published until the server is restarted"
            );
        }
    }
}

fn run(runtime: &Runtime, inputs: ThreadInputs, watch: DeathWatch) {
    let tasks = LocalSet::new();
    match tasks.block_on(runtime, publish(inputs)) {
        Ok(()) => watch.disarm(),
        Err(error) => watch.failed(&error),
    }
}

async fn publish(inputs: ThreadInputs) -> io::Result<()> {
    let ThreadInputs {
        config,
        page_size,
        mut queue,
        mut stopped,
        subscribers,
        replays,
        readers,
        metrics,
    } = inputs;
    let limits = RingLimits {
        replayed: config.buffer_steps,
        waiting: config.hwm,
    };
    let sockets = Rc::new(Sockets {
        topic: config.topic.clone(),
        ring: RefCell::new(Ring::new(limits)),
        published: watch::Sender::new(0),
        complaints: Default::default(),
        metrics,
    });
    // These tasks run until the thread ends.
    let mut serving = JoinSet::new();
    match subscribers {
        Some(bound) => {
            let listener = bound.register()?;
            serving.spawn_local(sockets::accept_subscribers(listener, sockets.clone()));
        }
        None => {
            if let Some(remote) = config.endpoint.remote() {
                serving.spawn_local(sockets::connect_to_subscriber(remote, sockets.clone()));
            }
        }
    }
    if let Some(bound) = replays {
        let listener = bound.register()?;
        serving.spawn_local(sockets::accept_replay_clients(listener, sockets.clone()));
    }
    serving.spawn_local(subscription::serve_readers(readers, sockets.clone()));
    let mut state = PublisherState::new(config, page_size);
    loop {
        let next = tokio::select! {
            biased;
            _ = &mut stopped => None,
            Some(Err(panicked)) = serving.join_next() => return Err(io::Error::other(panicked)),
            next = queue.recv() => next,
        };
        let Some(next) = next else { return Ok(()) };
        state.take(next, &sockets);
        // Lets the socket tasks run between two plans.
        yield_now().await;
    }
}

struct PublisherState {
    config: KvEventsConfig,
    page_size: PageSize,
    generation: u64,
    mirror: BlockMirror,
    events: EventBatches,
}

impl PublisherState {
    fn new(config: KvEventsConfig, page_size: PageSize) -> Self {
        Self {
            page_size,
            generation: 0,
            mirror: BlockMirror::new(page_size, config.block_size, config.format),
            events: EventBatches::new(config.block_size),
            config,
        }
    }

    fn take(&mut self, list: ChangeList, sockets: &Sockets) {
        let ChangeList {
            generation,
            mut changes,
            give_back,
        } = list;
        if generation > self.generation {
            self.generation = generation;
            let (block_size, format) = (self.config.block_size, self.config.format);
            self.mirror = BlockMirror::new(self.page_size, block_size, format);
        }
        let n_changes = changes.len();
        let mut n_tokens = 0;
        for change in changes.drain(..) {
            n_tokens += change.n_tokens();
            if generation == self.generation {
                self.mirror.apply(&change, &mut self.events);
            }
        }
        for batch in self.events.take() {
            self.publish(&batch, sockets);
        }
        // Sending fails if the feed was dropped.
        let _ = give_back.try_send(EmptiedList {
            changes,
            n_changes,
            n_tokens,
        });
    }

    fn publish(&self, batch: &[KvEvent], sockets: &Sockets) {
        let (mut stored, mut removed, mut clears) = (0, 0, 0);
        for event in batch {
            match event {
                KvEvent::Stored(blocks) => stored += blocks.ids.len(),
                KvEvent::Removed(ids) => removed += ids.len(),
                KvEvent::Cleared => clears += 1,
            }
        }
        sockets.metrics.published(stored, removed, clears);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time_s = now.map_or(0.0, |now| now.as_secs_f64());
        let KvEventsConfig {
            block_size,
            encoding,
            ..
        } = self.config;
        let payload = wire::encode(batch, time_s, block_size, encoding);
        sockets.publish(payload, named(batch));
    }
}

/// Indices of the events whose blocks are in a namespace with a salt or an `extra_key`.
pub(super) fn named(batch: &[KvEvent]) -> Vec<u32> {
    let is_named = |event: &KvEvent| match event {
        KvEvent::Stored(blocks) => blocks.is_named,
        KvEvent::Removed(_) | KvEvent::Cleared => false,
    };
    let events = (0..).zip(batch).filter(|(_, event)| is_named(event));
    events.map(|(place, _)| place).collect()
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

    use super::super::config::{Encoding, IdFormat};
    use super::*;
    use souffleur_state::cache::changes::CacheChange;

    fn started() -> (KvEventPublisher, PrometheusHandle) {
        let config = KvEventsConfig {
            endpoint: Endpoint::Tcp {
                host: "127.0.0.1".to_owned(),
                port: 0,
            },
            replay_endpoint: None,
            buffer_steps: 4,
            hwm: None,
            max_queue_size: 16,
            topic: String::new(),
            format: IdFormat::default(),
            encoding: Encoding::default(),
            block_size: 1,
        };
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let page_size = PageSize::new(1).expect("positive");
        let start = || KvEventPublisher::start(config, page_size);
        let publisher = metrics::with_local_recorder(&recorder, start);
        (publisher.expect("a port is free"), handle)
    }

    fn deaths(handle: &PrometheusHandle) -> Option<String> {
        let page = handle.render();
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with("souffleur_actor_deaths_total{"));
        line.map(str::to_owned)
    }

    #[test]
    fn a_death_is_counted_once_and_a_stop_is_not_counted() {
        let (publisher, handle) = started();
        let (give_back, _emptied) = mpsc::channel(1);
        let list = ChangeList {
            generation: 1,
            // A split of an unknown node makes the publisher panic.
            changes: vec![CacheChange::Split {
                upper: 0,
                lower: 7,
                at: 1,
            }],
            give_back,
        };
        assert!(publisher.queue.try_send(list).is_ok());
        assert!(publisher.ended.recv().is_err(), "its thread ends");
        let counted = "souffleur_actor_deaths_total{actor=\"kv_events\"} 1";
        assert_eq!(deaths(&handle).as_deref(), Some(counted));
        drop(publisher);
        assert_eq!(deaths(&handle).as_deref(), Some(counted));

        let (publisher, handle) = started();
        drop(publisher);
        let none = "souffleur_actor_deaths_total{actor=\"kv_events\"} 0";
        assert_eq!(deaths(&handle).as_deref(), Some(none));
    }
}
