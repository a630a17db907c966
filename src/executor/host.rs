//! The executor's interface to the KV store: it takes saved blocks and provides fetched blocks.

use std::any::Any;
use std::sync::Arc;

use souffleur_base::ids::Ticket;
use souffleur_state::tiers::BlockKind;

/// The executor's access to the store's block buffers. No call waits or does I/O.
pub trait BlockPort: Send {
    /// Calls `gather` with a free buffer of a kind and keeps the content under `ticket` until the store writes
    /// or drops it. Returns false if no buffer is free (`gather` is not called) or if the store has shut down.
    fn save(&mut self, ticket: Ticket, kind: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Calls `scatter` with each part of a fetched run, and frees the run's buffers. Returns false, without calling
    /// `scatter`, if a part of `wanted` was not fetched.
    fn load(
        &mut self,
        ticket: Ticket,
        wanted: Wanted,
        scatter: &mut dyn FnMut(LoadedPart<'_>),
    ) -> bool;

    /// Called when a step begins to compute and when it has ended: threads of the store may pause during the step.
    fn computes(&mut self, _is_computing: bool) {}

    /// Takes a free buffer of a kind, for a device that fills it asynchronously; [`HostBuffer::keep`] then keeps the
    /// content, as [`Self::save`] does. `None` if no buffer is free, or the port does not support this.
    fn take_buffer(&mut self, _kind: BlockKind) -> Option<Box<dyn HostBuffer>> {
        None
    }

    /// Takes the first `n_blocks` of a fetched run, for a device that reads them asynchronously; dropping the blocks
    /// frees their buffers. `None` if fewer were fetched, or the port does not support this.
    fn take_run(&mut self, _ticket: Ticket, _n_blocks: usize) -> Option<Vec<Box<dyn HostBuffer>>> {
        None
    }
}

/// A buffer of the store that a device copies to or from asynchronously.
pub trait HostBuffer: Send {
    /// The buffer's bytes. Their address is fixed while [`Self::owner`] is held, even after the buffer is dropped.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The buffer's whole memory pages, for pinning: they begin at the same address as [`Self::bytes_mut`] and hold no
    /// other data.
    fn pages_mut(&mut self) -> &mut [u8];

    /// The owner of the memory of all buffers of this kind.
    fn owner(&self) -> Arc<dyn Any + Send + Sync>;

    /// Keeps the content under `ticket`, as [`BlockPort::save`] does. False if the store has shut down.
    fn keep(self: Box<Self>, ticket: Ticket) -> bool;

    /// Leaks the memory, which a failed device may still use; the store can make another buffer.
    fn abandon(self: Box<Self>);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number of blocks, from the run's first one.
    pub blocks: usize,
    /// Whether the state after the last block is needed.
    pub state: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum LoadedPart<'a> {
    /// The index of a block in the run, and its keys and values.
    Block(usize, &'a [u8]),
    State(&'a [u8]),
}

pub(super) struct StoreLink {
    pub(super) port: Box<dyn BlockPort>,
    pub(super) block_tokens: usize,
}
