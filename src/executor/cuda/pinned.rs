//! Pins the KV store's buffers, so that copies do not block the launching thread.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::host::HostBuffer;
use souffleur_kernels::cuda::driver::{Device, Pinning};

/// The store's buffers that were pinned so far, by address; `None` for one that the driver could not pin. The store's
/// memory limit bounds their number.
pub(super) struct PinnedBuffers {
    by_address: FxHashMap<usize, Option<Pinning>>,
    device: Device,
    owners: Vec<Arc<dyn Any + Send + Sync>>,
    may_pin: bool,
    has_warned: bool,
}

impl PinnedBuffers {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            by_address: FxHashMap::default(),
            device: device.clone(),
            owners: Vec::new(),
            may_pin: true,
            has_warned: false,
        }
    }

    pub(super) fn begin_launch(&mut self) {
        self.may_pin = true;
    }

    /// Pins a new buffer, unless the launch has already pinned one: pinning delays the launch by milliseconds. Returns
    /// the address of the buffer's bytes. An unpinned buffer can also be copied, but the driver then copies it in parts
    /// while the thread waits.
    ///
    /// # Panics
    /// If the buffer's length is not `len`.
    pub(super) fn pin(&mut self, buffer: &mut dyn HostBuffer, len: usize) -> *mut u8 {
        let owner = buffer.owner();
        let bytes = buffer.bytes_mut();
        assert_eq!(bytes.len(), len, "a buffer must be as long as a block");
        if let Entry::Vacant(entry) = self.by_address.entry(bytes.as_ptr().addr())
            && std::mem::take(&mut self.may_pin)
        {
            if !self.owners.iter().any(|known| Arc::ptr_eq(known, &owner)) {
                self.owners.push(owner);
            }
            // SAFETY: the owner keeps the memory in place, and is dropped after the pinning.
            let pinned = unsafe { self.device.pin(buffer.pages_mut()) };
            if let Err(error) = &pinned
                && !std::mem::replace(&mut self.has_warned, true)
            {
                tracing::warn!(%error, "failed to pin a KV store buffer: its copies will be slow");
            }
            entry.insert(pinned.ok());
        }
        buffer.bytes_mut().as_mut_ptr()
    }
}
