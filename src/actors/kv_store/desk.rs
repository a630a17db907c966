//! Exchanges blocks between the executor's thread and the store, by ticket.
//!
//! The executor and the store never wait for each other: one leaves blocks on the desk, and the other takes them when
//! the message about them arrives, or they are discarded.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use souffleur_base::ids::Ticket;
use souffleur_executor::host::{BlockPort, HostBuffer, LoadedPart, Wanted};
use souffleur_store::{BlockKind, BlockPools, BlockUse, HostBlock, Loaded};

/// Clones share one desk, which outlives the stores and the units that use it.
#[derive(Clone, Default)]
pub struct BlockDesk(Arc<Mutex<DeskState>>);

#[derive(Default)]
struct DeskState {
    /// `None` while no store runs.
    pools: Option<BlockPools>,
    saved: FxHashMap<Ticket, HostBlock>,
    fetched: FxHashMap<Ticket, Loaded>,
    /// Smaller tickets are of earlier generations of the unit; `None` for no ticket.
    first_ticket: Option<Ticket>,
}

impl BlockDesk {
    pub fn port(&self) -> Box<dyn BlockPort> {
        Box::new(DeskPort(self.clone()))
    }

    /// Opens the desk for a store with these buffers. Blocks that an earlier store has fetched stay.
    pub fn open(&self, pools: BlockPools) {
        let mut desk = self.lock();
        let dropped = (desk.pools.replace(pools), std::mem::take(&mut desk.saved));
        drop(desk);
        drop(dropped);
    }

    /// Drops the blocks of earlier generations of the unit, whose tickets are smaller than `first`. The executor may
    /// still run a step of theirs: the blocks that the step saves are dropped, too.
    pub fn begin_unit(&self, first: Ticket) {
        let mut desk = self.lock();
        let DeskState {
            saved,
            fetched,
            first_ticket,
            ..
        } = &mut *desk;
        *first_ticket = Some(first);
        let old_saved: Vec<_> = saved.extract_if(|ticket, _| *ticket < first).collect();
        let old_fetched: Vec<_> = fetched.extract_if(|ticket, _| *ticket < first).collect();
        drop(desk);
        drop((old_saved, old_fetched));
    }

    /// Stops saving and drops saved blocks, when the store ends. Fetched blocks stay for the steps that load them.
    pub fn close(&self) {
        let mut desk = self.lock();
        let dropped = (desk.pools.take(), std::mem::take(&mut desk.saved));
        drop(desk);
        drop(dropped);
    }

    pub fn put_fetched(&self, ticket: Ticket, loaded: Loaded) {
        self.lock().fetched.insert(ticket, loaded);
    }

    pub fn take_saved(&self, ticket: Ticket) -> Option<HostBlock> {
        self.lock().saved.remove(&ticket)
    }

    pub fn discard(&self, ticket: Ticket) {
        let mut desk = self.lock();
        let dropped = (desk.saved.remove(&ticket), desk.fetched.remove(&ticket));
        drop(desk);
        drop(dropped);
    }

    fn take_free(&self, kind: BlockKind) -> Option<HostBlock> {
        let desk = self.lock();
        let pool = desk.pools.as_ref().and_then(|pools| pools.of(kind));
        let pool = pool.cloned();
        drop(desk);
        pool.and_then(|pool| pool.take(BlockUse::Saving))
    }

    /// Leaves a saved block for the store. False if the store to which the block belongs has ended, or the unit that
    /// saved it.
    fn put_saved(&self, ticket: Ticket, block: HostBlock) -> bool {
        let mut desk = self.lock();
        let is_old = desk.first_ticket.is_some_and(|first| ticket < first);
        let pool = desk.pools.as_ref().and_then(|pools| pools.of(block.kind()));
        let is_open = !is_old && pool.is_some_and(|pool| pool.has_made(&block));
        if is_open {
            desk.saved.insert(ticket, block);
        }
        is_open
    }

    fn lock(&self) -> MutexGuard<'_, DeskState> {
        // No operation under the lock can panic halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct DeskPort(BlockDesk);

impl BlockPort for DeskPort {
    fn save(&mut self, ticket: Ticket, kind: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(mut block) = self.0.take_free(kind) else {
            return false;
        };
        gather(block.bytes_mut());
        self.0.put_saved(ticket, block)
    }

    fn take_buffer(&mut self, kind: BlockKind) -> Option<Box<dyn HostBuffer>> {
        let block = self.0.take_free(kind)?;
        let desk = self.0.clone();
        Some(Box::new(DeskBuffer { block, desk }))
    }

    fn take_run(&mut self, ticket: Ticket, n_blocks: usize) -> Option<Vec<Box<dyn HostBuffer>>> {
        let loaded = self.0.lock().fetched.remove(&ticket)?;
        let desk = &self.0;
        let buffer = |block| -> Box<dyn HostBuffer> {
            let desk = desk.clone();
            Box::new(DeskBuffer { block, desk })
        };
        let has_all = loaded.kv.len() >= n_blocks;
        has_all.then(|| loaded.kv.into_iter().take(n_blocks).map(buffer).collect())
    }

    fn load(
        &mut self,
        ticket: Ticket,
        wanted: Wanted,
        scatter: &mut dyn FnMut(LoadedPart<'_>),
    ) -> bool {
        let loaded = self.0.lock().fetched.remove(&ticket);
        let has_all = |loaded: &Loaded| {
            loaded.kv.len() >= wanted.blocks && (loaded.state.is_some() || !wanted.state)
        };
        let Some(loaded) = loaded.filter(has_all) else {
            return false;
        };
        for (index, block) in loaded.kv.iter().take(wanted.blocks).enumerate() {
            scatter(LoadedPart::Block(index, block.bytes()));
        }
        if let Some(state) = loaded.state.filter(|_| wanted.state) {
            scatter(LoadedPart::State(state.bytes()));
        }
        true
    }

    fn computes(&mut self, is_computing: bool) {
        if let Some(pools) = &self.0.lock().pools {
            if is_computing {
                pools.activity().begin()
            } else {
                pools.activity().end()
            }
        }
    }
}

/// A buffer in use by a device, and the desk that it returns to.
struct DeskBuffer {
    block: HostBlock,
    desk: BlockDesk,
}

impl HostBuffer for DeskBuffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut()
    }

    fn pages_mut(&mut self) -> &mut [u8] {
        self.block.pages_mut()
    }

    fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.block.owner()
    }

    fn keep(self: Box<Self>, ticket: Ticket) -> bool {
        let Self { block, desk } = *self;
        desk.put_saved(ticket, block)
    }

    fn abandon(self: Box<Self>) {
        let Self { block, .. } = *self;
        block.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_state::tiers::Needs;
    use souffleur_store::{Geometry, Plane};

    const BLOCK_BYTES: usize = 64;

    fn pools() -> BlockPools {
        let plane = Plane {
            layer: 0,
            buffer: 0,
            bytes: BLOCK_BYTES,
        };
        let geometry = Geometry {
            block_tokens: 4,
            needs: Needs {
                state: false,
                window_tokens: 0,
            },
            planes: [Arc::from([plane]), Arc::default(), Arc::default()],
        };
        let (freed, _) = crossbeam_channel::bounded(1);
        let host_bytes = 8 * geometry.buffer_bytes(BlockKind::Kv) as u64;
        BlockPools::new(&geometry, host_bytes, &freed).expect("eight blocks fit")
    }

    fn save(desk: &BlockDesk, ticket: u64) -> bool {
        let mut gather = |bytes: &mut [u8]| bytes.fill(ticket as u8);
        desk.port()
            .save(Ticket::new(ticket), BlockKind::Kv, &mut gather)
    }

    fn load(desk: &BlockDesk, ticket: u64) -> bool {
        let wanted = Wanted {
            blocks: 1,
            state: false,
        };
        desk.port()
            .load(Ticket::new(ticket), wanted, &mut |_: LoadedPart<'_>| {})
    }

    fn fetched(pools: &BlockPools) -> Loaded {
        let pool = pools.of(BlockKind::Kv).expect("a pool of K/V blocks");
        Loaded {
            blocks: 0..1,
            kv: pool.take(BlockUse::Ready).into_iter().collect(),
            window: Vec::new(),
            state: None,
        }
    }

    #[test]
    fn only_fetched_blocks_outlive_the_store() {
        let (desk, pools) = (BlockDesk::default(), pools());
        assert!(!save(&desk, 1));
        desk.open(pools.clone());
        assert!(save(&desk, 2));
        desk.put_fetched(Ticket::new(3), fetched(&pools));
        desk.put_fetched(Ticket::new(4), fetched(&pools));
        desk.close();
        assert!(!save(&desk, 5));
        assert!(desk.take_saved(Ticket::new(2)).is_none());
        assert!(load(&desk, 3));
        desk.open(pools.clone());
        assert!(load(&desk, 4));
        let counts = pools.of(BlockKind::Kv).map(|pool| pool.counts().free);
        assert_eq!(counts, Some(8));
    }

    #[test]
    fn a_unit_gets_no_blocks_of_the_unit_before() {
        let (desk, pools) = (BlockDesk::default(), pools());
        desk.open(pools.clone());
        assert!(save(&desk, 1));
        desk.put_fetched(Ticket::new(2), fetched(&pools));
        let late = desk.port().take_buffer(BlockKind::Kv);
        let late = late.expect("a free buffer");
        desk.begin_unit(Ticket::new(100));
        // The executor still runs a step of the unit before.
        assert!(!load(&desk, 2));
        assert!(!save(&desk, 3) && !late.keep(Ticket::new(4)));
        for ticket in [1, 3, 4] {
            assert!(desk.take_saved(Ticket::new(ticket)).is_none());
        }
        let free = || pools.of(BlockKind::Kv).map(|pool| pool.counts().free);
        assert_eq!(free(), Some(8));
        assert!(save(&desk, 101));
        desk.put_fetched(Ticket::new(102), fetched(&pools));
        // The same unit, after another store was started.
        desk.begin_unit(Ticket::new(100));
        assert!(load(&desk, 102));
        assert!(desk.take_saved(Ticket::new(101)).is_some());
    }

    #[test]
    fn a_store_that_ends_while_a_block_is_copied_gets_nothing() {
        let (desk, pools) = (BlockDesk::default(), pools());
        desk.open(pools.clone());
        let closing = desk.clone();
        let mut gather = |_: &mut [u8]| closing.close();
        let is_saved = desk.port().save(Ticket::new(1), BlockKind::Kv, &mut gather);
        assert!(!is_saved && desk.take_saved(Ticket::new(1)).is_none());
        let counts = pools.of(BlockKind::Kv).map(|pool| pool.counts().free);
        assert_eq!(counts, Some(8));
    }

    #[test]
    fn a_buffer_of_a_device_is_kept_only_by_its_own_store() {
        let (desk, first) = (BlockDesk::default(), pools());
        desk.open(first.clone());
        let taken = || {
            desk.port()
                .take_buffer(BlockKind::Kv)
                .expect("a free buffer")
        };
        let (mut kept, late) = (taken(), taken());
        kept.bytes_mut().fill(7);
        assert!(kept.keep(Ticket::new(1)));
        let saved = desk.take_saved(Ticket::new(1)).expect("the block was kept");
        assert_eq!(saved.bytes(), [7; BLOCK_BYTES]);
        drop(saved);
        desk.open(pools());
        assert!(!late.keep(Ticket::new(2)));
        assert!(desk.take_saved(Ticket::new(2)).is_none());
        let counts = first.of(BlockKind::Kv).map(|pool| pool.counts().free);
        assert_eq!(counts, Some(8));
    }

    #[test]
    fn an_abandoned_buffer_can_be_allocated_again() {
        let (desk, pools) = (BlockDesk::default(), pools());
        desk.open(pools.clone());
        let mut port = desk.port();
        // All buffers are held at once, because a dropped one could be taken again.
        let mut take_all =
            || -> Vec<_> { std::iter::from_fn(|| port.take_buffer(BlockKind::Kv)).collect() };
        let all = take_all();
        assert_eq!(all.len(), 8);
        all.into_iter().for_each(|buffer| buffer.abandon());
        let free = pools.of(BlockKind::Kv).map(|pool| pool.counts().free);
        assert_eq!(free, Some(8));
        assert_eq!(take_all().len(), 8);
    }

    #[test]
    fn a_device_takes_the_blocks_of_a_run_and_frees_them_by_dropping_them() {
        let (desk, pools) = (BlockDesk::default(), pools());
        desk.open(pools.clone());
        desk.put_fetched(Ticket::new(1), fetched(&pools));
        desk.put_fetched(Ticket::new(2), fetched(&pools));
        let mut port = desk.port();
        assert!(port.take_run(Ticket::new(1), 2).is_none());
        let run = port.take_run(Ticket::new(2), 1);
        assert_eq!(run.as_ref().map(Vec::len), Some(1));
        let free = || pools.of(BlockKind::Kv).map(|pool| pool.counts().free);
        assert_eq!(free(), Some(7));
        drop(run);
        assert_eq!(free(), Some(8));
        assert!(port.take_run(Ticket::new(2), 1).is_none());
    }
}
