//! Copies a step's inputs to the device and its results back through pinned memory, on separate streams.
//!
//! Each ring has one slot more than the largest number of steps in flight, so that in steady state no step waits for a
//! slot; events still check that a slot is free.

use std::ops::Range;

use souffleur_kernels::cuda::driver::{
    Device, DeviceBuffer, DevicePtr, DriverError, Event, HostUse, PinnedBuffer, Priority, Stream,
};
use souffleur_state::step::PIPELINE_DEPTH;

pub(super) const N_SLOTS: usize = PIPELINE_DEPTH + 1;

pub(super) struct UploadRing {
    stream: Stream,
    slots: Vec<UploadSlot>,
    next: usize,
}

struct UploadSlot {
    host: PinnedBuffer<u32>,
    device: DeviceBuffer<u32>,
    /// Recorded after the copy from `host`; the CPU writes to `host` only once this event is reached.
    copied: Event,
    /// Recorded after the last kernel that reads `device`: the next copy to `device` waits for it.
    read: Event,
}

pub(super) struct Upload {
    slot: usize,
    /// Address of the words, valid for work launched on the compute stream after the upload.
    pub(super) start: DevicePtr<u32>,
}

impl UploadRing {
    /// A ring whose slots have `n_words` words at first, and grow when a step needs more.
    pub(super) fn new(
        device: &Device,
        n_slots: usize,
        n_words: usize,
    ) -> Result<Self, DriverError> {
        let slots = (0..n_slots).map(|_| UploadSlot::new(device, n_words));
        Ok(Self {
            stream: device.stream(Priority::High)?,
            slots: slots.collect::<Result<_, _>>()?,
            next: 0,
        })
    }

    /// Copies words to the device. Work launched on `compute` afterwards waits for the copy.
    pub(super) fn upload(
        &mut self,
        words: &[u32],
        compute: &Stream,
    ) -> Result<Upload, DriverError> {
        let index = self.next;
        self.next = (index + 1) % self.slots.len();
        let slot = &mut self.slots[index];
        slot.copied.synchronize()?;
        if slot.host.len() < words.len() {
            *slot = UploadSlot::new(compute.device(), words.len().next_power_of_two())?;
        }
        slot.host[..words.len()].copy_from_slice(words);
        self.stream.wait(&slot.read)?;
        // SAFETY: this memory is written again, or freed, only when `copied` was reached.
        unsafe {
            self.stream
                .upload(&slot.device, 0, &slot.host, 0..words.len())
        }?;
        self.stream.record(&slot.copied)?;
        compute.wait(&slot.copied)?;
        Ok(Upload {
            slot: index,
            start: slot.device.ptr(),
        })
    }

    /// Copies some of the uploaded words to a buffer that outlives the step.
    pub(super) fn copy_words(
        &self,
        uploaded: &Upload,
        words: Range<usize>,
        (to, at): (&DeviceBuffer<u32>, usize),
        compute: &Stream,
    ) -> Result<(), DriverError> {
        if words.is_empty() {
            Ok(())
        } else {
            compute.copy(to, at, &self.slots[uploaded.slot].device, words)
        }
    }

    /// Frees the slot once all work launched on `compute` so far has ended.
    pub(super) fn release(&self, uploaded: Upload, compute: &Stream) -> Result<(), DriverError> {
        compute.record(&self.slots[uploaded.slot].read)
    }
}

impl UploadSlot {
    fn new(device: &Device, n_words: usize) -> Result<Self, DriverError> {
        Ok(Self {
            host: device.pinned(n_words, HostUse::Upload)?,
            device: device.alloc(n_words)?,
            copied: device.event()?,
            read: device.event()?,
        })
    }
}

pub(super) struct ReadbackRing {
    stream: Stream,
    slots: Vec<ReadbackSlot>,
    next: usize,
}

struct ReadbackSlot {
    /// A copy of the results, so that the next step may overwrite them.
    device: DeviceBuffer<u32>,
    host: PinnedBuffer<u32>,
    /// Recorded after the last copy to `device`.
    written: Event,
    /// Recorded after the copy to `host`.
    copied: Event,
}

#[derive(Debug)]
pub(super) struct Readback {
    slot: usize,
    n_words: usize,
}

pub(super) struct ReadbackPart<'a> {
    pub(super) from: &'a DeviceBuffer<u32>,
    pub(super) words: Range<usize>,
}

impl ReadbackRing {
    /// A ring whose slots have `n_words` words at first, and grow when a step needs more.
    pub(super) fn new(
        device: &Device,
        n_slots: usize,
        n_words: usize,
    ) -> Result<Self, DriverError> {
        let slots = (0..n_slots).map(|_| ReadbackSlot::new(device, n_words));
        Ok(Self {
            stream: device.stream(Priority::High)?,
            slots: slots.collect::<Result<_, _>>()?,
            next: 0,
        })
    }

    /// Begins to copy `parts` to the host, contiguously, after all work launched on `compute` so far.
    pub(super) fn begin(
        &mut self,
        parts: &[ReadbackPart<'_>],
        compute: &Stream,
    ) -> Result<Readback, DriverError> {
        let index = self.next;
        self.next = (index + 1) % self.slots.len();
        let slot = &mut self.slots[index];
        // Steps finish in order, so the last step on this slot was read and its copies have ended.
        slot.copied.synchronize()?;
        let n_words: usize = parts.iter().map(|part| part.words.len()).sum();
        if slot.host.len() < n_words {
            *slot = ReadbackSlot::new(compute.device(), n_words.next_power_of_two())?;
        }
        let mut at = 0;
        for part in parts.iter().filter(|part| !part.words.is_empty()) {
            compute.copy(&slot.device, at, part.from, part.words.clone())?;
            at += part.words.len();
        }
        compute.record(&slot.written)?;
        self.stream.wait(&slot.written)?;
        // SAFETY: `host` is read or freed only once `copied` is reached; `words` waits for it.
        unsafe {
            self.stream
                .read_back(&slot.host, 0, &slot.device, 0..n_words)
        }?;
        self.stream.record(&slot.copied)?;
        Ok(Readback {
            slot: index,
            n_words,
        })
    }

    pub(super) fn is_copied(&self, readback: &Readback) -> Result<bool, DriverError> {
        self.slots[readback.slot].copied.is_reached()
    }

    pub(super) fn words(&self, readback: &Readback) -> Result<&[u32], DriverError> {
        let slot = &self.slots[readback.slot];
        slot.copied.synchronize()?;
        Ok(&slot.host[..readback.n_words])
    }
}

impl ReadbackSlot {
    fn new(device: &Device, n_words: usize) -> Result<Self, DriverError> {
        Ok(Self {
            device: device.alloc(n_words)?,
            host: device.pinned(n_words, HostUse::Readback)?,
            written: device.event()?,
            copied: device.event()?,
        })
    }
}
