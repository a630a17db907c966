//! The thread that mirrors the radix tree of a replica and publishes its block events.
//!
//! The thread belongs to the engine and outlives restarts of the replica's actors: the first change of a new
//! generation's tree is [`CacheChange::Cleared`], and queued changes of the previous generation are dropped.
//!
//! After a panic the thread begins anew: its sockets stay bound, and the batches' numbers continue. It publishes a
//! clear event and drops all changes until the feed, which gets back the list that was in hand, sends all content.
//!
//! [`CacheChange::Cleared`]: souffleur_state::cache::changes::CacheChange::Cleared

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::RecvTimeoutError;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::{JoinSet, LocalSet, yield_now};

use super::batch::{EventBatches, KvEvent};
use super::config::{KvEventsConfig, invalid_config};
use super::feed::{ChangeFeed, ChangeList, MAX_QUEUED_LISTS};
use super::listener::BoundEndpoint;
use super::mirror::BlockMirror;
use super::ring::{Ring, RingLimits};
use super::sockets::{self, Sockets};
use super::subscription::{self, Reader, Subscriptions};
use super::wire;
use souffleur_base::error::ConfigError;
use souffleur_chaos::{Actor, Chaos, Phase};
use souffleur_metrics::{DeathMetrics, KvEventMetrics};
use souffleur_state::cache::changes::CacheChange;
use souffleur_state::pool::pages::PageSize;
use souffleur_state::supervision::{Intensity, Restarts};

/// The thread's name in the death metric.
const NAME: &str = "kv_events";
/// A publisher that dies more often ends.
const ALLOWED_RESTARTS: Intensity = Intensity {
    limit: 5,
    period_s: 60.0,
};
/// The longest time that `drop` waits for the thread to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The publisher of a replica. Dropping it stops the thread.
pub(super) struct KvEventPublisher {
    queue: mpsc::Sender<ChangeList>,
    max_changes: usize,
    metrics: KvEventMetrics,
    subscriptions: Subscriptions,
    stop: Option<oneshot::Sender<()>>,
    /// Disconnects when the thread ends.
    ended: crossbeam_channel::Receiver<io::Result<()>>,
}

/// The replica whose cache is published, with its sockets and metrics.
pub(super) struct Replica {
    pub rank: u32,
    /// `None` if the publisher connects to a subscriber.
    pub subscribers: Option<BoundEndpoint>,
    pub replays: Option<BoundEndpoint>,
    pub metrics: KvEventMetrics,
}

struct ThreadInputs {
    config: KvEventsConfig,
    page_size: PageSize,
    queue: mpsc::Receiver<ChangeList>,
    readers: Arc<Mutex<mpsc::Receiver<Reader>>>,
    stopped: oneshot::Receiver<()>,
    replica: Replica,
    chaos: Chaos,
}

impl KvEventPublisher {
    /// Starts the thread. `config` has the endpoints of the replica.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub(super) fn start(
        chaos: Chaos,
        config: KvEventsConfig,
        page_size: PageSize,
        replica: Replica,
    ) -> Result<Self, ConfigError> {
        let metrics = replica.metrics.clone();
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
            readers: Arc::new(Mutex::new(readers)),
            replica,
            chaos,
        };
        let thread = std::thread::Builder::new().name("souffleur-events".to_owned());
        let deaths = DeathMetrics::register(&[NAME]);
        let spawned = thread.spawn(move || run_thread(inputs, deaths, running));
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
        Ok(Self {
            queue,
            max_changes,
            metrics,
            subscriptions,
            stop: Some(stop),
            ended,
        })
    }

    /// Creates the feed for the tree of one generation of actors. Its first list of changes makes the publisher ignore
    /// the feeds of earlier generations.
    pub(super) fn feed(&self, generation: u64) -> ChangeFeed {
        ChangeFeed::new(
            generation,
            self.queue.clone(),
            self.max_changes,
            self.metrics.clone(),
        )
    }

    /// Publishes that nothing is cached, and ignores the feeds of all generations from now on. The log names `replica`.
    pub(super) fn retire(&self, replica: usize) {
        let (give_back, _) = mpsc::channel(1);
        let list = ChangeList::new(u64::MAX, vec![CacheChange::Cleared], give_back);
        if self.queue.try_send(list).is_err() {
            tracing::warn!(
                replica,
                "failed to queue the KV event that clears the blocks of a replica that stays down: subscribers still \
                 list them until the server is restarted"
            );
        }
    }

    /// Access to the published events; may outlive the publisher.
    pub(super) fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
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

/// `running` gets the outcome of the start, and is dropped when the thread ends.
fn run_thread(
    inputs: ThreadInputs,
    deaths: DeathMetrics,
    running: crossbeam_channel::Sender<io::Result<()>>,
) {
    // Created in this thread, since a runtime must not be dropped inside another runtime.
    let runtime = Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => {
            let _ = running.send(Ok(()));
            run(&runtime, inputs, &deaths);
            // Does not wait for DNS lookups, which may outlast every timeout.
            runtime.shutdown_background();
        }
        Err(error) => drop(running.send(Err(error))),
    }
}

/// Publishes until the publisher is stopped, or has died too often.
fn run(runtime: &Runtime, mut inputs: ThreadInputs, deaths: &DeathMetrics) {
    let limits = RingLimits {
        replayed: inputs.config.buffer_steps,
        waiting: inputs.config.hwm,
    };
    let sockets = Rc::new(Sockets {
        topic: inputs.config.topic.clone(),
        ring: RefCell::new(Ring::new(limits)),
        published: watch::Sender::new(0),
        complaints: Default::default(),
        metrics: inputs.replica.metrics.clone(),
    });
    let rank = inputs.replica.rank;
    let mut state = PublisherState::new(inputs.config.clone(), inputs.page_size, rank);
    let (began, mut restarts) = (Instant::now(), Restarts::default());
    loop {
        let tasks = LocalSet::new();
        let publishing = publish(&mut inputs, &mut state, &sockets);
        let ended = catch_unwind(AssertUnwindSafe(|| tasks.block_on(runtime, publishing)));
        let reason = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        deaths.died(NAME);
        if !restarts.note(ALLOWED_RESTARTS, began.elapsed().as_secs_f64()) {
            tracing::error!(
                reason,
                "the KV event publisher died too often: nothing is published until the server is restarted"
            );
            return;
        }
        tracing::error!(
            reason,
            "the KV event publisher died: restarting it; subscribers first get AllBlocksCleared, then the cache again"
        );
        state.forget();
    }
}

/// Publishes until the publisher is stopped.
///
/// # Errors
/// An endpoint's listener cannot be made, or a task that serves clients has panicked.
async fn publish(
    inputs: &mut ThreadInputs,
    state: &mut PublisherState,
    sockets: &Rc<Sockets>,
) -> io::Result<()> {
    let ThreadInputs {
        config,
        queue,
        stopped,
        replica,
        readers,
        chaos,
        ..
    } = inputs;
    // These tasks run until this function returns.
    let mut serving = JoinSet::new();
    match &replica.subscribers {
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
    if let Some(bound) = &replica.replays {
        let listener = bound.register()?;
        serving.spawn_local(sockets::accept_replay_clients(listener, sockets.clone()));
    }
    let readers = readers.clone();
    serving.spawn_local(subscription::serve_readers(readers, sockets.clone()));
    if state.awaits_clear {
        state.publish(&[KvEvent::Cleared], sockets);
    }
    loop {
        let next = tokio::select! {
            biased;
            _ = &mut *stopped => None,
            Some(Err(panicked)) = serving.join_next() => return Err(io::Error::other(panicked)),
            next = queue.recv() => next,
        };
        let Some(next) = next else { return Ok(()) };
        chaos.strike(Actor::KvEvents, Phase::Entry, "ChangeList");
        state.take(next, sockets);
        chaos.strike(Actor::KvEvents, Phase::Exit, "ChangeList");
        // Lets the socket tasks run between two plans.
        yield_now().await;
    }
}

struct PublisherState {
    config: KvEventsConfig,
    page_size: PageSize,
    rank: u32,
    generation: u64,
    mirror: BlockMirror,
    events: EventBatches,
    /// The publisher has died: changes are dropped until the whole content follows.
    awaits_clear: bool,
}

impl PublisherState {
    fn new(config: KvEventsConfig, page_size: PageSize, rank: u32) -> Self {
        Self {
            page_size,
            rank,
            generation: 0,
            mirror: BlockMirror::new(page_size, config.block_size, config.format),
            events: EventBatches::new(config.block_size),
            awaits_clear: false,
            config,
        }
    }

    fn empty_mirror(&self) -> BlockMirror {
        BlockMirror::new(self.page_size, self.config.block_size, self.config.format)
    }

    fn forget(&mut self) {
        self.mirror = self.empty_mirror();
        self.events = EventBatches::new(self.config.block_size);
        self.awaits_clear = true;
    }

    fn take(&mut self, mut list: ChangeList, sockets: &Sockets) {
        if list.generation > self.generation {
            self.generation = list.generation;
            self.mirror = self.empty_mirror();
        }
        if list.generation == self.generation {
            for change in &list.changes {
                self.apply(change);
            }
        }
        for batch in self.events.take() {
            self.publish(&batch, sockets);
        }
        // A feed whose changes are lost sends the whole content.
        list.is_read = !self.awaits_clear;
    }

    fn apply(&mut self, change: &CacheChange) {
        self.awaits_clear &= !matches!(change, CacheChange::Cleared);
        if !self.awaits_clear {
            self.mirror.apply(change, &mut self.events);
        }
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
        let rank = self.rank;
        let stamp = wire::Stamp { time_s, rank };
        let payload = wire::encode(batch, stamp, block_size, encoding);
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
#[path = "publisher_tests.rs"]
mod tests;
