//! Where blocks change hands between the executor's thread and the store, by ticket.
//!
//! The executor never waits for the store and the store never for the executor: what one side has put down, the other takes
//! when its message about it arrives, or nobody does and it is discarded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::executor::host::{BlockPort, LoadedPart, Wanted};
use crate::ids::Ticket;
use crate::store::{BlockKind, BlockPools, BlockUse, HostBlock, Loaded};

/// See the module. Clones are the same desk; it outlives the units that use it.
#[derive(Clone, Default)]
pub struct BlockDesk(Arc<Mutex<OnDesk>>);

#[derive(Default)]
struct OnDesk {
    /// `None` while no store runs.
    pools: Option<BlockPools>,
    saved: FxHashMap<Ticket, HostBlock>,
    fetched: FxHashMap<Ticket, Loaded>,
}

impl BlockDesk {
    /// The executor's end.
    pub fn port(&self) -> Box<dyn BlockPort> {
        Box::new(DeskPort(self.clone()))
    }

    /// A store begins, whose buffers these are; what an earlier unit has left is gone.
    pub fn open(&self, pools: BlockPools) {
        *self.lock() = OnDesk {
            pools: Some(pools),
            ..OnDesk::default()
        };
    }

    /// The store ends: nothing is saved any more, and what lies here is gone.
    pub fn close(&self) {
        *self.lock() = OnDesk::default();
    }

    /// Puts down what was fetched.
    pub fn put_fetched(&self, ticket: Ticket, loaded: Loaded) {
        self.lock().fetched.insert(ticket, loaded);
    }

    /// Takes what a step has saved.
    pub fn take_saved(&self, ticket: Ticket) -> Option<HostBlock> {
        self.lock().saved.remove(&ticket)
    }

    /// Gives back what lies here under a ticket.
    pub fn discard(&self, ticket: Ticket) {
        let mut desk = self.lock();
        let left = (desk.saved.remove(&ticket), desk.fetched.remove(&ticket));
        drop(desk);
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, OnDesk> {
        // Nothing that is done under the lock can be half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct DeskPort(BlockDesk);

impl BlockPort for DeskPort {
    fn save(&mut self, ticket: Ticket, kind: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool {
        let desk = self.0.lock();
        let pool = desk
            .pools
            .as_ref()
            .and_then(|pools| pools.of(kind))
            .cloned();
        drop(desk);
        let Some(mut block) = pool.and_then(|pool| pool.take(BlockUse::Saving)) else {
            return false;
        };
        gather(block.bytes_mut());
        self.0.lock().saved.insert(ticket, block);
        true
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
}
