//! The KV store: keeps blocks of keys, values and states on disk, across evictions and restarts.
//!
//! One thread does all disk I/O. Callers send requests through bounded channels and never wait: a request to a full
//! channel is refused and counted. Answers go to a [`Sink`]. A record that is damaged, missing, late or from another
//! model is a miss, never an error; if the store fails, the engine runs without it.
//!
//! The store depends on neither actors nor executors. Data is passed in [`HostBlock`]s, which are moved from the
//! executor that fills them to the thread that writes them, and back. `state::tiers` derives the keys of blocks, and
//! decides which blocks are kept and which are worth loading.

mod block;
mod config;
mod dropped;
mod files;
mod folder;
mod geometry;
mod io;
mod log;
mod pace;
mod pages;
mod record;
mod request;
mod segments;
mod stats;
#[cfg(test)]
mod tests;
mod tier;
pub mod weights;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};

pub use block::{BlockCounts, BlockPool, BlockPools, BlockUse, HostBlock};
pub use config::{PrefetchTimeout, StoreConfig, StoreError};
pub use folder::{random_secret, secret_of};
pub use geometry::{Geometry, Plane};
pub use pace::StepActivity;
pub use request::{Answer, Commit, Fetch, Find, Loaded, Outcome, Refusal, Short, Sink, TierState};
pub use souffleur_state::tiers::{
    BLOCK_TOKENS, BlockKey, BlockKind, BlockPlace, Fingerprint, FingerprintParts, KeyChain, Keys,
    Needs, Secret, block_tokens,
};
pub use stats::StoreStats;

use files::{ChaosFiles, Files, SystemFiles};
use io::Urgent;
use souffleur_base::ids::Ticket;
use souffleur_chaos::Chaos;
use stats::Counts;
use tier::TierSetup;

/// How long a stopping store may continue to write commits.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Capacity of the queue of finds, fetches, touches and cancels.
const MAX_URGENT: usize = 4096;
const MAX_COMMITS: usize = 1024;

/// A flag that asks long work to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Returns the parts of the engine's fingerprint. The store's thread calls this function once. The call may take
/// minutes, and should poll [`Stop`]. An error turns the store off.
pub type Identify = Box<dyn FnOnce(&Stop) -> Result<FingerprintParts, String> + Send>;

#[derive(Debug, Default)]
struct Shared {
    stop: Stop,
    is_serving: AtomicBool,
    counts: Counts,
}

/// The buffers of a store. A store that is started after it uses them again, so that devices need not pin others.
#[derive(Clone)]
pub struct Buffers {
    pools: BlockPools,
    /// Notifies the I/O thread that a buffer is free.
    freed: Receiver<()>,
}

impl Buffers {
    /// # Errors
    /// [`StoreError::HostBytes`] if there are not two buffers of each kind.
    pub fn new(geometry: &Geometry, host_bytes: u64) -> Result<Self, StoreError> {
        let (sender, freed) = crossbeam_channel::bounded(1);
        let pools = BlockPools::new(geometry, host_bytes, &sender)?;
        Ok(Self { pools, freed })
    }
}

/// A running store. Dropping it stops it, as [`shut_down`](Self::shut_down) does.
pub struct Store {
    /// `None` once the store is stopping.
    senders: Option<(Sender<Urgent>, Sender<Commit>)>,
    shared: Arc<Shared>,
    pools: BlockPools,
    prefetch_timeout: PrefetchTimeout,
    /// Disconnects when the thread ends.
    running: Receiver<()>,
}

impl Store {
    /// Starts the thread. `sink` receives the answers to requests, and each change of the [`TierState`].
    ///
    /// # Errors
    /// [`StoreError`], if the memory or disk bounds are too small for a block, or the thread does not start.
    pub fn start(
        config: StoreConfig,
        geometry: Geometry,
        identify: Identify,
        sink: Sink,
    ) -> Result<Self, StoreError> {
        Self::start_on(Box::new(SystemFiles), config, geometry, identify, sink)
    }

    /// Like [`Self::start`], with faults of files, if chaos is on, and with these buffers, if there are any.
    pub fn start_with(
        (chaos, buffers): (&Chaos, Option<Buffers>),
        config: StoreConfig,
        geometry: Geometry,
        identify: Identify,
        sink: Sink,
    ) -> Result<Self, StoreError> {
        let files: Box<dyn Files> = if chaos.is_on() {
            Box::new(ChaosFiles::new(Box::new(SystemFiles), chaos.clone()))
        } else {
            Box::new(SystemFiles)
        };
        let buffers = match buffers {
            Some(buffers) => buffers,
            None => Buffers::new(&geometry, config.host_bytes)?,
        };
        Self::start_in(buffers, files, config, geometry, (identify, sink))
    }

    /// Like [`Self::start`], on any file system.
    fn start_on(
        files: Box<dyn Files>,
        config: StoreConfig,
        geometry: Geometry,
        identify: Identify,
        sink: Sink,
    ) -> Result<Self, StoreError> {
        let buffers = Buffers::new(&geometry, config.host_bytes)?;
        Self::start_in(buffers, files, config, geometry, (identify, sink))
    }

    fn start_in(
        buffers: Buffers,
        files: Box<dyn Files>,
        config: StoreConfig,
        geometry: Geometry,
        (identify, sink): (Identify, Sink),
    ) -> Result<Self, StoreError> {
        let Buffers { pools, freed } = buffers;
        let (urgent, urgent_in) = crossbeam_channel::bounded(MAX_URGENT);
        let (commits, commits_in) = crossbeam_channel::bounded(MAX_COMMITS);
        let (running_in_thread, running) = crossbeam_channel::bounded(0);
        let shared = Arc::new(Shared::default());
        let channels = io::Channels {
            urgent: urgent_in,
            commits: commits_in,
            buffers_freed: freed,
            sink,
            _running: running_in_thread,
        };
        let startup = io::Startup {
            files,
            setup: TierSetup {
                root: config.path,
                disk_bytes: config.disk_bytes,
                drop_behind: config.drop_behind,
                geometry,
            },
            identify,
            pools: pools.clone(),
            shared: shared.clone(),
            write_share: config.write_share,
        };
        io::start(startup, channels)?;
        Ok(Self {
            senders: Some((urgent, commits)),
            shared,
            pools,
            prefetch_timeout: config.prefetch_timeout,
            running,
        })
    }

    /// Requests a lookup of blocks.
    ///
    /// # Errors
    /// [`Refusal`]; then no answer comes.
    pub fn find(&self, find: Find) -> Result<(), Refusal> {
        self.send_urgent(Urgent::Find(find))
    }

    /// Requests that blocks are loaded into memory.
    ///
    /// # Errors
    /// [`Refusal`]; then no answer comes.
    pub fn fetch(&self, fetch: Fetch) -> Result<(), Refusal> {
        self.send_urgent(Urgent::Fetch(fetch))
    }

    /// Queues a block for writing.
    ///
    /// # Errors
    /// [`Refusal`]; then no answer comes, and the buffer is free again.
    pub fn commit(&self, commit: Commit) -> Result<(), Refusal> {
        let commits = self.senders.as_ref().map(|(_, commits)| commits);
        self.send(commits, commit)
    }

    /// Marks a block and all blocks before it as recently used, so that they are evicted later.
    pub fn touch(&self, key: BlockKey) -> Result<(), Refusal> {
        self.send_urgent(Urgent::Touch(key))
    }

    /// Cancels a fetch, which is answered with [`Answer::Late`], unless its answer was already sent.
    ///
    /// # Errors
    /// [`Refusal`]; the fetch then ends by its deadline.
    pub fn cancel(&self, ticket: Ticket) -> Result<(), Refusal> {
        self.send_urgent(Urgent::Cancel(ticket))
    }

    pub fn pools(&self) -> &BlockPools {
        &self.pools
    }

    /// How long a fetch of `tokens` tokens may take.
    pub fn prefetch_timeout(&self, tokens: usize) -> Duration {
        self.prefetch_timeout.of(tokens)
    }

    pub fn stats(&self) -> StoreStats {
        self.shared.counts.read()
    }

    /// Stops the store: cancels fetches and writes commits, within [`DRAIN_TIMEOUT`]. False if the disk does not
    /// respond in time: the thread then ends once the disk responds.
    pub fn shut_down(mut self) -> bool {
        self.stop()
    }

    fn stop(&mut self) -> bool {
        // Sets the flag first, as the thread wakes when the channels close.
        self.shared.stop.set();
        self.senders = None;
        let ended = self.running.recv_timeout(DRAIN_TIMEOUT + DRAIN_TIMEOUT / 5);
        ended == Err(crossbeam_channel::RecvTimeoutError::Disconnected)
    }

    fn send_urgent(&self, request: Urgent) -> Result<(), Refusal> {
        let urgent = self.senders.as_ref().map(|(urgent, _)| urgent);
        self.send(urgent, request)
    }

    fn send<T>(&self, sender: Option<&Sender<T>>, request: T) -> Result<(), Refusal> {
        let counts = &self.shared.counts;
        let is_serving = self.shared.is_serving.load(Ordering::Acquire);
        let result = match sender.filter(|_| is_serving) {
            Some(sender) => sender.try_send(request),
            None => Err(TrySendError::Disconnected(request)),
        };
        result.map_err(|refused| match refused {
            TrySendError::Full(_) => {
                counts.refused_full.add(1);
                Refusal::Full
            }
            TrySendError::Disconnected(_) => {
                counts.refused_not_serving.add(1);
                Refusal::NotServing
            }
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.senders.is_some() && !self.stop() {
            tracing::warn!(
                "the KV store did not stop in time: its disk is slow or not responding, and its latest blocks may be \
                 lost"
            );
        }
    }
}
