//! Uploads large data to the device through a small ring of pinned buffers.

use std::sync::Arc;

use bytemuck::Pod;

use super::device::Device;
use super::error::DriverError;
use super::memory::{DeviceBuffer, HostUse, PinnedBuffer};
use super::stream::{Event, Stream};

/// Pinned buffers: one is filled while the other is copied.
const N_CHUNKS: usize = 2;
/// Bytes of a buffer: enough to saturate the bus, and few enough to be filled quickly.
const CHUNK_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub struct Uploader {
    stream: Arc<Stream>,
    chunks: [Chunk; N_CHUNKS],
    next: usize,
}

#[derive(Debug)]
struct Chunk {
    memory: PinnedBuffer<u64>,
    /// Recorded after the chunk's last copy.
    copied: Event,
}

impl Uploader {
    pub fn new(device: &Device, stream: impl Into<Arc<Stream>>) -> Result<Self, DriverError> {
        let chunk = || {
            Ok::<_, DriverError>(Chunk {
                memory: device.pinned(CHUNK_BYTES / size_of::<u64>(), HostUse::Upload)?,
                copied: device.event()?,
            })
        };
        Ok(Self {
            stream: stream.into(),
            chunks: [chunk()?, chunk()?],
            next: 0,
        })
    }

    /// Copies `len` elements to `to`, from element `at` on. `fill(memory, first)` writes the elements from `first` on
    /// to `memory`, which is slow to read.
    ///
    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    ///
    /// # Panics
    /// If the elements are out of bounds.
    pub fn upload<T: Pod>(
        &mut self,
        to: &DeviceBuffer<T>,
        at: usize,
        len: usize,
        mut fill: impl FnMut(&mut [T], usize),
    ) -> Result<(), DriverError> {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= to.len()),
            "{len} elements from {at} on exceed {} elements",
            to.len()
        );
        let per_chunk = CHUNK_BYTES / size_of::<T>().max(1);
        for first in (0..len).step_by(per_chunk) {
            let n = per_chunk.min(len - first);
            let chunk = &mut self.chunks[self.next];
            self.next = (self.next + 1) % N_CHUNKS;
            chunk.copied.synchronize()?;
            let memory: &mut [T] = bytemuck::cast_slice_mut(&mut chunk.memory);
            fill(&mut memory[..n], first);
            // SAFETY: in bounds of both; this memory is written again, or freed, only when `copied` was reached.
            unsafe { self.stream.copy_to_device(to.at(at + first), &memory[..n]) }?;
            self.stream.record(&chunk.copied)?;
        }
        Ok(())
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    pub fn finish(&self) -> Result<(), DriverError> {
        self.stream.synchronize()
    }
}
