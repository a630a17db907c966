//! Holds buffers of the KV store until the copies on a stream that use them have ended.

use std::sync::Arc;

use crate::host::HostBuffer;
use souffleur_kernels::cuda::driver::Stream;

/// Buffers that a stream copies to or from; dropping them waits for the copies.
pub(super) struct HeldBuffers {
    stream: Arc<Stream>,
    buffers: Vec<Box<dyn HostBuffer>>,
}

impl HeldBuffers {
    pub(super) fn new(stream: &Arc<Stream>) -> Self {
        Self {
            stream: stream.clone(),
            buffers: Vec::new(),
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn hold(&mut self, buffer: Box<dyn HostBuffer>) {
        self.buffers.push(buffer);
    }

    /// Returns the buffers. Their copies must have ended.
    pub(super) fn release(mut self) -> Vec<Box<dyn HostBuffer>> {
        std::mem::take(&mut self.buffers)
    }
}

impl Drop for HeldBuffers {
    fn drop(&mut self) {
        if self.buffers.is_empty() || self.stream.synchronize().is_ok() {
            return;
        }
        // The context is lost and copies may still run: the memory is leaked instead of reused.
        for buffer in self.buffers.drain(..) {
            buffer.abandon();
        }
    }
}
