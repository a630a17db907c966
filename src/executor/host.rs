//! The executor's interface to the store: takes saved blocks and provides fetched ones.

use std::any::Any;
use std::sync::Arc;

use souffleur_base::ids::Ticket;
use souffleur_state::tiers::BlockKind;

/// Buffers of blocks, on the executor's side. No call waits or does I/O.
pub trait BlockPort: Send {
    /// Calls `gather` with a free buffer of a kind and keeps its content under `ticket`, for the store to write or to
    /// drop on command. Returns false without a call if no buffer is free, or after the call if the store has ended.
    fn save(&mut self, ticket: Ticket, kind: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Calls `scatter` with each part of a run that was fetched, and frees its buffers. Returns false without a call if
    /// a part of `wanted` was not fetched.
    fn load(
        &mut self,
        ticket: Ticket,
        wanted: Wanted,
        scatter: &mut dyn FnMut(LoadedPart<'_>),
    ) -> bool;

    /// A step begins to compute, or has ended: other threads on the same processor may pause during the step.
    fn computes(&mut self, _is_computing: bool) {}

    /// Takes a free buffer of a kind, for a device that fills it by itself: [`HostBuffer::keep`] then completes the
    /// work of [`Self::save`]. `None` when no buffer is free, or the port has none to give.
    fn take_buffer(&mut self, _kind: BlockKind) -> Option<Box<dyn HostBuffer>> {
        None
    }

    /// Takes the first `n_blocks` of a run that was fetched, for a device that reads them by itself; dropping them
    /// frees their buffers. `None` when fewer were fetched, or the port has none to give.
    fn take_run(&mut self, _ticket: Ticket, _n_blocks: usize) -> Option<Vec<Box<dyn HostBuffer>>> {
        None
    }
}

/// A buffer of the store in use by a device, whose copies outlast the calls that begin them.
pub trait HostBuffer: Send {
    /// The buffer's bytes. Their address is fixed while [`Self::owner`] is held, even after the buffer is dropped.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The whole pages of the buffer, for a device that pins memory by the page: they begin where [`Self::bytes_mut`]
    /// does, end after it, and hold no other data.
    fn pages_mut(&mut self) -> &mut [u8];

    /// The owner of the memory of all buffers of this kind.
    fn owner(&self) -> Arc<dyn Any + Send + Sync>;

    /// Keeps the content under `ticket`, as [`BlockPort::save`] does. False if the store has ended.
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

pub(super) struct Host {
    pub(super) port: Box<dyn BlockPort>,
    pub(super) block_tokens: usize,
}
