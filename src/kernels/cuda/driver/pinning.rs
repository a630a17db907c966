//! Pins host memory that the driver did not allocate, and copies to and from it.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::device::Device;
use super::error::DriverError;
use super::memory::{DeviceBuffer, check_range};
use super::stream::Stream;
use super::table::check;

/// Host memory that was allocated elsewhere and pinned here. It is unpinned on drop or, in a lost context, when the
/// context ends, and must live that long.
#[derive(Debug)]
pub struct Pinning {
    device: Device,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; nothing is read or written through it.
unsafe impl Send for Pinning {}

impl Device {
    /// Pins existing memory, so that copies to and from it are asynchronous.
    ///
    /// # Safety
    /// The memory lives and does not move until the result is dropped or, in a lost context, until the context ends.
    ///
    /// # Errors
    /// The driver's error: for example, if a page of the memory is pinned already.
    pub unsafe fn pin(&self, memory: &mut [u8]) -> Result<Pinning, DriverError> {
        self.bind()?;
        let start = NonNull::from(&mut *memory).cast::<u8>();
        // SAFETY: the caller borrows the range mutably; the context is current.
        check("cuMemHostRegister", unsafe {
            (self.functions().host_register)(start.as_ptr().cast(), memory.len(), 0)
        })?;
        self.pinned_counter()
            .fetch_add(memory.len() as u64, Ordering::Relaxed);
        Ok(Pinning {
            device: self.clone(),
            start,
            len: memory.len(),
        })
    }
}

impl Drop for Pinning {
    fn drop(&mut self) {
        self.device
            .pinned_counter()
            .fetch_sub(self.len as u64, Ordering::Relaxed);
        // A copy may be in flight. A lost context unpins the memory when it ends.
        let unregister = self.device.functions().host_unregister;
        // SAFETY: pinned in `pin`, unpinned once.
        let _ = self
            .device
            .when_idle(|| unsafe { unregister(self.start.as_ptr().cast()) });
    }
}

impl Stream {
    /// Enqueues a copy of `len` host bytes to the device, from byte `at` of `to` on. Bytes that are not pinned are
    /// copied before this returns.
    ///
    /// # Safety
    /// Until this stream has passed this point (see [`Stream::upload`]), the bytes live and are not written.
    ///
    /// # Panics
    /// If the bytes exceed `to`.
    pub unsafe fn upload_bytes(
        &self,
        (to, at): (&DeviceBuffer<u8>, usize),
        from: *const u8,
        len: usize,
    ) -> Result<(), DriverError> {
        check_range(to.len(), at, len);
        // SAFETY: guaranteed by the caller; the bytes are only passed to the driver.
        let from = unsafe { std::slice::from_raw_parts(from, len) };
        // SAFETY: in bounds; the rest by the caller.
        unsafe { self.copy_to_device(to.at(at), from) }
    }

    /// Enqueues a copy of bytes `range` of the device's `from` to the host; waits if that memory is not pinned.
    ///
    /// # Safety
    /// Until this stream has passed this point (see [`Stream::upload`]), `range.len()` bytes from `to` on live and are
    /// neither read nor written.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub unsafe fn read_back_bytes(
        &self,
        to: *mut u8,
        from: &DeviceBuffer<u8>,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        check_range(from.len(), range.start, range.len());
        // SAFETY: in bounds; the rest by the caller.
        unsafe { self.copy_to_host(to.cast(), from.at(range.start), range.len()) }
    }
}
