//! The pool of host memory buffers for K/V blocks: a fixed number of each kind, allocated on first use or in idle time,
//! and never freed.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};

use crate::pages::PageBuffer;
use crate::{Geometry, Plane, StepActivity, StoreError};
use souffleur_state::tiers::BlockKind;

/// Smaller buffers are allocated on demand, which is fast enough for them.
const MIN_AHEAD_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// The executor fills the buffer, or the buffer waits to be written.
    Saving,
    /// The I/O thread fills the buffer from the disk.
    Fetching,
    /// The buffer waits for the step that loads it.
    Ready,
}

/// Numbers of buffers. `free + saving + fetching + ready == total` while no thread takes or returns a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    pub free: usize,
    pub saving: usize,
    pub fetching: usize,
    pub ready: usize,
    pub total: usize,
}

struct PoolState {
    kind: BlockKind,
    planes: Arc<[Plane]>,
    payload_bytes: usize,
    total: usize,
    /// Number of allocated buffers, without abandoned ones.
    made: AtomicUsize,
    uses: [AtomicUsize; 3],
    free_sender: Sender<PageBuffer>,
    free: Receiver<PageBuffer>,
    /// Notifies the I/O thread that a fetch may continue.
    freed: Sender<()>,
    /// Whether a failed allocation was logged.
    has_warned: AtomicBool,
}

impl PoolState {
    /// Counts one more allocated buffer. False if all buffers are allocated.
    fn count_one_more(&self) -> bool {
        let more = |made| (made < self.total).then_some(made + 1);
        let made = &self.made;
        made.fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// Allocates a buffer. `None` if the system is out of memory.
    fn allocate(&self) -> Option<PageBuffer> {
        let bytes = self.payload_bytes;
        match PageBuffer::zeroed(bytes) {
            Ok(buffer) => Some(buffer),
            Err(error) => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %error,
                        bytes,
                        "failed to allocate a KV store buffer: continuing with fewer buffers; lower kv_host_bytes"
                    );
                }
                None
            }
        }
    }
}

/// The buffers of one kind. Clones share the pool.
#[derive(Clone)]
pub struct BlockPool(Arc<PoolState>);

impl BlockPool {
    /// A pool of `total` buffers for a kind's planes. Each returned buffer sends to `freed`, if this channel has space.
    pub fn new(kind: BlockKind, planes: Arc<[Plane]>, total: usize, freed: Sender<()>) -> Self {
        let (free_sender, free) = crossbeam_channel::bounded(total);
        Self(Arc::new(PoolState {
            kind,
            payload_bytes: planes.iter().map(|plane| plane.bytes).sum(),
            planes,
            total,
            made: AtomicUsize::new(0),
            uses: Default::default(),
            free_sender,
            free,
            freed,
            has_warned: AtomicBool::new(false),
        }))
    }

    /// Takes a buffer; its content is arbitrary. `None` if no buffer is free, or the system is out of memory.
    pub fn take(&self, usage: BlockUse) -> Option<HostBlock> {
        let pool = &self.0;
        let bytes = pool.free.try_recv().ok().or_else(|| self.make())?;
        pool.uses[usage as usize].fetch_add(1, Ordering::AcqRel);
        Some(HostBlock {
            bytes,
            usage,
            is_abandoned: false,
            pool: self.clone(),
        })
    }

    /// Allocates a buffer. `None` if all buffers are allocated, or the system is out of memory.
    fn make(&self) -> Option<PageBuffer> {
        let pool = &self.0;
        if !pool.count_one_more() {
            return None;
        }
        let bytes = pool.allocate();
        if bytes.is_none() {
            pool.made.fetch_sub(1, Ordering::AcqRel);
        }
        bytes
    }

    /// Allocates a buffer before it is needed, because the first touch of its memory is slow. False if all buffers are
    /// allocated, if they are small, or if the system is out of memory.
    fn make_ahead(&self) -> bool {
        let pool = &self.0;
        if pool.payload_bytes < MIN_AHEAD_BYTES || pool.made.load(Ordering::Acquire) >= pool.total {
            return false;
        }
        let Some(mut bytes) = pool.allocate() else {
            return false;
        };
        // The system backs pages with memory only when they are first touched.
        bytes.fill(1);
        // The channel has capacity for every buffer.
        pool.count_one_more() && pool.free_sender.try_send(bytes).is_ok()
    }

    pub fn counts(&self) -> BlockCounts {
        let pool = &self.0;
        let of = |usage: BlockUse| pool.uses[usage as usize].load(Ordering::Acquire);
        BlockCounts {
            free: pool.free.len() + pool.total - pool.made.load(Ordering::Acquire),
            saving: of(BlockUse::Saving),
            fetching: of(BlockUse::Fetching),
            ready: of(BlockUse::Ready),
            total: pool.total,
        }
    }

    pub fn kind(&self) -> BlockKind {
        self.0.kind
    }

    pub fn has_made(&self, block: &HostBlock) -> bool {
        Arc::ptr_eq(&self.0, &block.pool.0)
    }

    pub fn planes(&self) -> &Arc<[Plane]> {
        &self.0.planes
    }
}

impl fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockPool({}, {:?})", self.kind().name(), self.counts())
    }
}

/// One buffer, which returns to its pool when dropped. Move-only: one thread at a time owns it.
#[must_use]
pub struct HostBlock {
    bytes: PageBuffer,
    usage: BlockUse,
    is_abandoned: bool,
    pool: BlockPool,
}

impl HostBlock {
    pub fn kind(&self) -> BlockKind {
        self.pool.kind()
    }

    pub fn planes(&self) -> &Arc<[Plane]> {
        self.pool.planes()
    }

    /// All bytes: the planes in order, without gaps.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The buffer's bytes and the padding after them: whole memory pages that hold no other data.
    pub fn pages_mut(&mut self) -> &mut [u8] {
        self.bytes.pages_mut()
    }

    /// The owner of the buffer's memory: while a caller holds it, no buffer of the pool moves or is freed.
    pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.pool.0.clone()
    }

    /// Leaks the memory, which a reader or writer that cannot be stopped may still use: the pool makes another buffer.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// The bytes of each plane, in the order of [`planes`](Self::planes).
    pub fn split(&self) -> impl Iterator<Item = (&Plane, &[u8])> {
        let mut rest = &*self.bytes;
        self.pool.planes().iter().map(move |plane| {
            let (bytes, others) = rest.split_at(plane.bytes);
            rest = others;
            (plane, bytes)
        })
    }

    /// The mutable bytes of each plane, which different threads may fill.
    pub fn split_mut(&mut self) -> impl Iterator<Item = (&Plane, &mut [u8])> {
        let mut rest = &mut *self.bytes;
        self.pool.planes().iter().map(move |plane| {
            let (bytes, others) = std::mem::take(&mut rest).split_at_mut(plane.bytes);
            rest = others;
            (plane, bytes)
        })
    }

    pub fn usage(&self) -> BlockUse {
        self.usage
    }

    pub fn set_usage(&mut self, usage: BlockUse) {
        let uses = &self.pool.0.uses;
        uses[usage as usize].fetch_add(1, Ordering::AcqRel);
        uses[self.usage as usize].fetch_sub(1, Ordering::AcqRel);
        self.usage = usage;
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        let pool = &self.pool.0;
        pool.uses[self.usage as usize].fetch_sub(1, Ordering::AcqRel);
        let bytes = std::mem::take(&mut self.bytes);
        if self.is_abandoned {
            bytes.leak();
            pool.made.fetch_sub(1, Ordering::AcqRel);
        } else {
            // The channel has capacity for every buffer.
            let _ = pool.free_sender.try_send(bytes);
        }
        let _ = pool.freed.try_send(());
    }
}

impl fmt::Debug for HostBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind().name();
        write!(f, "HostBlock({kind}, {} bytes)", self.bytes.len())
    }
}

/// The pools of an engine: one for each kind in use.
#[derive(Clone, Debug)]
pub struct BlockPools {
    pools: [Option<BlockPool>; 3],
    activity: StepActivity,
}

/// Recurrent states take `1 / STATE_SHARE` of the memory for buffers.
const STATE_SHARE: u64 = 4;
/// The least number of buffers of a kind: one can be saved while another is loaded.
const MIN_BUFFERS: u64 = 2;
/// The largest number of buffers of a kind.
const MAX_BUFFERS: u64 = 1 << 16;

impl BlockPools {
    /// Divides `host_bytes` among the kinds: a quarter for states (at least two buffers), the rest for equal numbers of
    /// K/V blocks and window records. A buffer takes whole pages.
    ///
    /// # Errors
    /// [`StoreError::HostBytes`] if there are not two buffers of each kind.
    pub fn new(
        geometry: &Geometry,
        host_bytes: u64,
        freed: &Sender<()>,
    ) -> Result<Self, StoreError> {
        let size = |kind| geometry.buffer_bytes(kind) as u64;
        let state_bytes = size(BlockKind::State);
        let token_bytes = size(BlockKind::Kv) + size(BlockKind::Window);
        let states = match state_bytes {
            0 => 0,
            bytes => (host_bytes / STATE_SHARE / bytes).clamp(MIN_BUFFERS, MAX_BUFFERS),
        };
        let rest = host_bytes.saturating_sub(states * state_bytes);
        let blocks = (rest / token_bytes.max(1)).min(MAX_BUFFERS);
        let needed_bytes = state_bytes + token_bytes;
        if blocks < MIN_BUFFERS || states * state_bytes > host_bytes {
            return Err(StoreError::HostBytes {
                host_bytes,
                needed_bytes,
                limit_bytes: MIN_BUFFERS * needed_bytes,
            });
        }
        let pools = BlockKind::ALL.map(|kind| {
            let planes = geometry.planes(kind);
            let total = match kind {
                BlockKind::State => states,
                BlockKind::Kv | BlockKind::Window => blocks,
            };
            let pool = || BlockPool::new(kind, planes.clone(), total as usize, freed.clone());
            (!planes.is_empty()).then(pool)
        });
        Ok(Self {
            pools,
            activity: StepActivity::default(),
        })
    }

    /// Shows whether the engine that uses the buffers is computing.
    pub fn activity(&self) -> &StepActivity {
        &self.activity
    }

    /// Makes a buffer of any kind ahead of its use. False if no pool makes one.
    pub fn make_ahead(&self) -> bool {
        self.pools.iter().flatten().any(BlockPool::make_ahead)
    }

    /// The pool of a kind; `None` if the model does not have the kind.
    pub fn of(&self, kind: BlockKind) -> Option<&BlockPool> {
        self.pools[kind.index()].as_ref()
    }
}
