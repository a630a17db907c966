//! Copies KV blocks between the device's pool and the KV store's buffers, in parallel with the steps.
//!
//! **Saves** run on their own stream. After the steps that wrote a block, this stream gathers the block's pages into
//! staging memory and copies them from there to a buffer, while the step that saves the block computes. A step that is
//! granted one of these pages before the copy ends waits for the copy; this is rare. **Loads** run on another stream,
//! which copies a block to a free slot on the device; the compute stream scatters the block to its row's pages.
//!
//! Each launch pins at most one new buffer; the driver stages the copies of unpinned buffers. A buffer belongs to its
//! step until its copies have ended.

mod held;
mod steps;

use std::sync::Arc;

use held::HeldBuffers;
use rustc_hash::FxHashSet;

use super::pinned::PinnedBuffers;
use crate::host::{BlockPort, HostBuffer};
use souffleur_base::ids::{PageId, RowId, Ticket};
use souffleur_base::kv_layout::KvLayout;
use souffleur_kernels::cuda::backend::{CudaBackend, CudaFailure};
use souffleur_kernels::cuda::driver::{Device, DeviceBuffer, DriverError, Event, Priority, Stream};
use souffleur_state::step::{BlockLoad, BlockSave, BlockSource};
use souffleur_state::tiers::BlockKind;

/// Slots on the device for loaded blocks: a block is copied to one slot while blocks in other slots are scattered.
pub(super) const LOAD_SLOTS: usize = 4;
/// Blocks of staging memory outside of the pool: the load slots, and one for saves.
const STAGED_BLOCKS: u64 = LOAD_SLOTS as u64 + 1;

/// Bytes of device memory in which block copies are staged.
pub fn staging_bytes(layout: &KvLayout, block_tokens: usize) -> u64 {
    let block = layout.bytes_per_token().saturating_mul(block_tokens as u64);
    block.saturating_mul(STAGED_BLOCKS)
}

/// Why a step failed after its launch had begun.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepFailure {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Operation(#[from] CudaFailure),
    #[error("the KV store no longer has the blocks to load into row {row} (ticket {ticket})")]
    MissingBlocks { ticket: Ticket, row: RowId },
}

pub(super) struct BlockCopier {
    port: Box<dyn BlockPort>,
    block_tokens: usize,
    block_bytes: usize,
    save_stream: Arc<Stream>,
    /// Recorded on the compute stream after the work that may have written the saved pages.
    written: Event,
    spare_events: Vec<Event>,
    /// Staging memory of the block that is being saved.
    gathered: DeviceBuffer<u8>,
    pub(super) loading: LoadRing,
    /// Whether a refused copy has been logged.
    has_warned: bool,
    /// Dropped last: it keeps the buffers' memory allocated.
    pinned: PinnedBuffers,
}

/// The copies of a step, from its launch to its end.
#[derive(Default)]
pub(super) struct StepBlocks {
    saves: Option<Saves>,
    loads: Option<HeldBuffers>,
}

struct Saves {
    buffers: HeldBuffers,
    tickets: Vec<Ticket>,
    pages: FxHashSet<PageId>,
    /// Recorded after the last copy.
    copied: Event,
}

impl StepBlocks {
    /// Whether the copies of saved blocks have ended.
    pub(super) fn are_saves_copied(&self) -> Result<bool, DriverError> {
        let saves = self.saves.as_ref();
        saves.map_or(Ok(true), |saves| saves.copied.is_reached())
    }
}

impl BlockCopier {
    fn new(
        device: &Device,
        port: Box<dyn BlockPort>,
        (block_tokens, block_bytes): (usize, usize),
    ) -> Result<Self, DriverError> {
        Ok(Self {
            port,
            block_tokens,
            block_bytes,
            save_stream: Arc::new(device.stream(Priority::Low)?),
            written: device.event()?,
            spare_events: Vec::new(),
            gathered: device.alloc(block_bytes)?,
            loading: LoadRing::new(device, LOAD_SLOTS, block_bytes)?,
            has_warned: false,
            pinned: PinnedBuffers::new(device),
        })
    }

    /// Begins to save blocks that earlier steps wrote. A block without a free buffer, or whose copy the driver refuses,
    /// is not saved: the store finds nothing under its ticket.
    fn save(
        &mut self,
        saves: &[BlockSave],
        backend: &CudaBackend,
        compute: &Stream,
    ) -> Result<Option<Saves>, DriverError> {
        let copied = match self.spare_events.pop() {
            Some(event) => event,
            None => compute.device().event()?,
        };
        let mut begun = Saves {
            buffers: HeldBuffers::new(&self.save_stream),
            tickets: Vec::new(),
            pages: FxHashSet::default(),
            copied,
        };
        compute.record(&self.written)?;
        self.save_stream.wait(&self.written)?;
        for BlockSave { ticket, from } in saves {
            let BlockSource::Pages(pages) = from else {
                // CUDA executors support no layers that keep a state.
                continue;
            };
            let Some(mut buffer) = self.port.take_buffer(BlockKind::Kv) else {
                continue;
            };
            match self.copy_out(pages, buffer.as_mut(), backend) {
                Ok(()) => {
                    begun.buffers.hold(buffer);
                    begun.tickets.push(*ticket);
                    begun.pages.extend(pages);
                }
                Err(error) if error.is_refusal() => {
                    if !std::mem::replace(&mut self.has_warned, true) {
                        tracing::warn!(%error, "failed to copy blocks to the KV store: not saving them");
                    }
                }
                Err(error) => {
                    // The copy may be in flight.
                    begun.buffers.hold(buffer);
                    return Err(error);
                }
            }
        }
        self.save_stream.record(&begun.copied)?;
        Ok((!begun.tickets.is_empty()).then_some(begun))
    }

    fn copy_out(
        &mut self,
        pages: &[PageId],
        buffer: &mut dyn HostBuffer,
        backend: &CudaBackend,
    ) -> Result<(), DriverError> {
        let to = self.pinned.pin(buffer, self.block_bytes);
        // SAFETY: page ids were checked; the stream waits for the pages' last writer, their next writer for `copied`.
        unsafe { backend.gather_block(&self.save_stream, pages, self.gathered.ptr()) }?;
        // SAFETY: the buffer has the length of a block, and belongs to its step until `copied` is reached.
        unsafe {
            self.save_stream
                .read_back_bytes(to, &self.gathered, 0..self.block_bytes)
        }
    }

    /// Copies a run of blocks to the pages of its row.
    fn load(
        &mut self,
        load: &BlockLoad,
        held: &mut HeldBuffers,
        (backend, compute): (&CudaBackend, &Stream),
    ) -> Result<(), StepFailure> {
        let parts = load.parts(self.block_tokens);
        let Some(run) = self.port.take_run(load.ticket, parts.len()) else {
            return Err(StepFailure::MissingBlocks {
                ticket: load.ticket,
                row: load.row,
            });
        };
        for (index, mut buffer) in run.into_iter().enumerate() {
            let Some(positions) = parts.of(index) else {
                continue;
            };
            let from = self.pinned.pin(buffer.as_mut(), self.block_bytes);
            // The buffer is held before its copy begins.
            held.hold(buffer);
            let slot = self.loading.next_slot();
            // SAFETY: the buffer has the length of a block, and is held until the copy has ended.
            unsafe { slot.upload(held.stream(), from, self.block_bytes) }?;
            compute.wait(&slot.copied)?;
            let block = (slot.device.ptr(), self.block_tokens);
            // SAFETY: the row owns the pages of these positions, so no other row writes them; the slot is refilled only
            // after `read` is reached.
            unsafe { backend.scatter_block(compute, (load.row, positions), block) }?;
            compute.record(&slot.read)?;
        }
        Ok(())
    }
}

pub(super) struct LoadRing {
    stream: Arc<Stream>,
    slots: Vec<LoadSlot>,
    next: usize,
}

struct LoadSlot {
    device: DeviceBuffer<u8>,
    /// Recorded after the copy to `device`.
    copied: Event,
    /// Recorded after the scatter from `device`: the next copy to `device` waits for it.
    read: Event,
}

impl LoadRing {
    pub(super) fn new(
        device: &Device,
        n_slots: usize,
        block_bytes: usize,
    ) -> Result<Self, DriverError> {
        let slot = |_| {
            Ok(LoadSlot {
                device: device.alloc(block_bytes)?,
                copied: device.event()?,
                read: device.event()?,
            })
        };
        Ok(Self {
            stream: Arc::new(device.stream(Priority::High)?),
            slots: (0..n_slots).map(slot).collect::<Result<_, _>>()?,
            next: 0,
        })
    }

    fn next_slot(&mut self) -> &LoadSlot {
        let index = self.next;
        self.next = (index + 1) % self.slots.len();
        &self.slots[index]
    }
}

impl LoadSlot {
    /// # Safety
    /// As for [`Stream::upload_bytes`].
    unsafe fn upload(
        &self,
        stream: &Stream,
        from: *const u8,
        len: usize,
    ) -> Result<(), DriverError> {
        stream.wait(&self.read)?;
        // SAFETY: guaranteed by the caller.
        unsafe { stream.upload_bytes((&self.device, 0), from, len) }?;
        stream.record(&self.copied)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
