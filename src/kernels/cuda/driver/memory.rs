//! Memory buffers: on the device, and pinned on the host.

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use cudarc::driver::sys::CUdeviceptr;

use super::device::Device;
use super::error::DriverError;
use super::stream::Stream;
use super::table::check;

const WRITE_COMBINED: c_uint = 4;

/// A device address of a `T`, passed to kernels as a pointer.
#[repr(transparent)]
pub struct DevicePtr<T> {
    address: CUdeviceptr,
    of: PhantomData<*mut T>,
}

// SAFETY: a plain address, which the host never dereferences.
unsafe impl<T> Send for DevicePtr<T> {}
// SAFETY: likewise.
unsafe impl<T> Sync for DevicePtr<T> {}

impl<T> DevicePtr<T> {
    pub const NULL: Self = Self::from_address(0);

    pub const fn from_address(address: u64) -> Self {
        Self {
            address,
            of: PhantomData,
        }
    }

    pub const fn address(self) -> u64 {
        self.address
    }

    pub const fn is_null(self) -> bool {
        self.address == 0
    }

    #[must_use]
    pub const fn add(self, n: usize) -> Self {
        Self::from_address(self.address + (n * size_of::<T>()) as u64)
    }

    pub const fn cast<U>(self) -> DevicePtr<U> {
        DevicePtr::from_address(self.address)
    }
}

impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePtr<T> {}

impl<T> Default for DevicePtr<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> PartialEq for DevicePtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for DevicePtr<T> {}

impl<T> fmt::Debug for DevicePtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

/// Device memory, freed on drop. Its initial content is undefined.
pub struct DeviceBuffer<T> {
    device: Device,
    start: DevicePtr<T>,
    len: usize,
}

impl Device {
    /// Allocates device memory. Not for hot paths: the driver may wait for the device.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>, DriverError> {
        let bytes = bytes_of::<T>("cuMemAlloc", len)?;
        self.bind()?;
        let mut address = 0;
        // SAFETY: `address` outlives the call, the context is current. The driver refuses 0 bytes.
        let code = unsafe { (self.functions().mem_alloc)(&mut address, bytes.max(1)) };
        check("cuMemAlloc", code)?;
        self.allocated_counter()
            .fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(DeviceBuffer {
            device: self.clone(),
            start: DevicePtr::from_address(address),
            len,
        })
    }

    /// Allocates zeroed pinned host memory.
    pub fn pinned<T: Pod>(
        &self,
        len: usize,
        usage: HostUse,
    ) -> Result<PinnedBuffer<T>, DriverError> {
        let bytes = bytes_of::<T>("cuMemHostAlloc", len)?.max(1);
        self.bind()?;
        let mut memory = std::ptr::null_mut();
        let flags = match usage {
            HostUse::Upload => WRITE_COMBINED,
            HostUse::Readback => 0,
        };
        // SAFETY: `memory` outlives the call, the context is current.
        let code = unsafe { (self.functions().host_alloc)(&mut memory, bytes, flags) };
        check("cuMemHostAlloc", code)?;
        let Some(start) = NonNull::new(memory.cast::<T>()) else {
            return Err(DriverError::invalid(
                "cuMemHostAlloc",
                format!("returned no memory for {bytes} bytes"),
            ));
        };
        // SAFETY: `bytes` bytes were just allocated, aligned to pages. Zeros are a value of any `Pod`.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        self.pinned_counter()
            .fetch_add((len * size_of::<T>()) as u64, Ordering::Relaxed);
        Ok(PinnedBuffer {
            device: self.clone(),
            start,
            len,
        })
    }
}

fn bytes_of<T>(call: &'static str, len: usize) -> Result<usize, DriverError> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| {
        DriverError::invalid(
            call,
            format!("{len} elements of {} bytes overflow", size_of::<T>()),
        )
    })
}

impl<T> DeviceBuffer<T> {
    pub fn ptr(&self) -> DevicePtr<T> {
        self.start
    }

    /// Address of element `index`, which may be one past the last.
    ///
    /// # Panics
    /// If `index` is greater.
    pub fn at(&self, index: usize) -> DevicePtr<T> {
        assert!(
            index <= self.len,
            "element {index} is past the end of {}",
            self.len
        );
        self.start.add(index)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        let bytes = self.bytes() as u64;
        self.device
            .allocated_counter()
            .fetch_sub(bytes, Ordering::Relaxed);
        if self.device.bind().is_ok() {
            // SAFETY: made in `alloc`, freed once; the driver waits for its users. After an error nothing is left to
            // do: the context is lost, and its memory with it.
            let _ = unsafe { (self.device.functions().mem_free)(self.start.address()) };
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostUse {
    /// Written by the host, front to back, and copied to the device. Reading it is very slow.
    Upload,
    /// Copied from the device and read by the host; also for memory that the host reads and writes.
    Readback,
}

/// Pinned host memory, freed on drop. It does not track copies in flight: the caller must not access the elements until
/// its copy is done, see [`Stream::upload`].
pub struct PinnedBuffer<T> {
    device: Device,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its memory, which all threads may use.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: likewise; it is changed only through `&mut`, or by copies for which their callers are responsible.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl<T> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated and zeroed in `pinned`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: likewise, and borrowed as `&mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        self.device
            .pinned_counter()
            .fetch_sub((self.len * size_of::<T>()) as u64, Ordering::Relaxed);
        // A copy may be in flight; if it cannot be waited for, leaking the memory is better than reusing it.
        let free = self.device.functions().host_free;
        // SAFETY: allocated in `pinned`, freed once, and nothing uses it any more.
        let _ = self
            .device
            .when_idle(|| unsafe { free(self.start.as_ptr().cast()) });
    }
}

impl Stream {
    /// Enqueues a copy of elements `range` of pinned memory to the device, from element `at` of `to` on.
    ///
    /// # Safety
    /// Until this stream has passed this point (a [`Stream::synchronize`], or a later event that was reached) the
    /// elements of `from` are not written, and `from` lives.
    ///
    /// # Panics
    /// If either range is out of bounds.
    pub unsafe fn upload<T: Pod>(
        &self,
        to: &DeviceBuffer<T>,
        at: usize,
        from: &PinnedBuffer<T>,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        let from = &from[range];
        check_range(to.len, at, from.len());
        // SAFETY: both are in bounds; the rest by the caller.
        unsafe { self.copy_to_device(to.at(at), from) }
    }

    /// Enqueues a copy of elements `range` of the device's `from` to pinned memory, from element `at` of `to` on.
    ///
    /// # Safety
    /// Until this stream has passed this point (see [`Stream::upload`]) the elements of `to` are neither read nor
    /// written, and `to` lives.
    ///
    /// # Panics
    /// If either range is out of bounds.
    pub unsafe fn read_back<T: Pod>(
        &self,
        to: &PinnedBuffer<T>,
        at: usize,
        from: &DeviceBuffer<T>,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        check_range(from.len, range.start, range.len());
        check_range(to.len, at, range.len());
        // SAFETY: `at` is in bounds.
        let to = unsafe { to.start.add(at) };
        // SAFETY: both are in bounds; the rest by the caller.
        unsafe { self.copy_to_host(to.as_ptr().cast(), from.at(range.start), range.len()) }
    }

    /// Enqueues a copy of elements `range` of `from` within the device, from element `at` of `to` on.
    ///
    /// # Panics
    /// If either range is out of bounds.
    pub fn copy<T: Pod>(
        &self,
        to: &DeviceBuffer<T>,
        at: usize,
        from: &DeviceBuffer<T>,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        check_range(from.len, range.start, range.len());
        check_range(to.len, at, range.len());
        self.device().bind()?;
        let (to, bytes) = (to.at(at), range.len() * size_of::<T>());
        let from = from.at(range.start);
        // SAFETY: both are in bounds of memory that lives: freeing waits for the device.
        check("cuMemcpyDtoDAsync", unsafe {
            (self.device().functions().copy_on_device)(
                to.address(),
                from.address(),
                bytes,
                self.raw(),
            )
        })
    }

    /// Sets every byte of elements `range` to `byte`.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn fill<T: Pod>(
        &self,
        to: &DeviceBuffer<T>,
        range: Range<usize>,
        byte: u8,
    ) -> Result<(), DriverError> {
        check_range(to.len, range.start, range.len());
        if range.is_empty() {
            return Ok(());
        }
        self.device().bind()?;
        let bytes = range.len() * size_of::<T>();
        // SAFETY: in bounds of memory that lives: freeing waits for the device.
        check("cuMemsetD8Async", unsafe {
            let address = to.at(range.start).address();
            (self.device().functions().fill_bytes)(address, byte, bytes, self.raw())
        })
    }

    /// Copies a slice to the device, from element `at` of `to` on, and waits.
    ///
    /// # Panics
    /// If the slice exceeds `to`.
    pub fn write<T: Pod>(
        &self,
        to: &DeviceBuffer<T>,
        at: usize,
        from: &[T],
    ) -> Result<(), DriverError> {
        check_range(to.len, at, from.len());
        // SAFETY: in bounds; `from` is borrowed until the copy is done.
        let begun = unsafe { self.copy_to_device(to.at(at), from) };
        begun.and(self.synchronize())
    }

    /// Copies elements `range` from the device, after all work of the stream, and waits.
    ///
    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn read<T: Pod>(
        &self,
        from: &DeviceBuffer<T>,
        range: Range<usize>,
    ) -> Result<Vec<T>, DriverError> {
        check_range(from.len, range.start, range.len());
        let mut to = vec![T::zeroed(); range.len()];
        let host = to.as_mut_ptr().cast();
        // SAFETY: in bounds; `to` is not used before the copy is done.
        let begun = unsafe { self.copy_to_host(host, from.at(range.start), range.len()) };
        begun.and(self.synchronize())?;
        Ok(to)
    }

    /// # Safety
    /// `to` is at least as long as `from`, which is not written until the stream has passed this point.
    pub(super) unsafe fn copy_to_device<T: Pod>(
        &self,
        to: DevicePtr<T>,
        from: &[T],
    ) -> Result<(), DriverError> {
        if from.is_empty() {
            return Ok(());
        }
        self.device().bind()?;
        let bytes = size_of_val(from);
        // SAFETY: guaranteed by the caller.
        check("cuMemcpyHtoDAsync", unsafe {
            let from = from.as_ptr().cast::<c_void>();
            (self.device().functions().copy_to_device)(to.address(), from, bytes, self.raw())
        })
    }

    /// # Safety
    /// Both have `len` elements, and those of `to` are not accessed until the stream has passed this point.
    pub(super) unsafe fn copy_to_host<T: Pod>(
        &self,
        to: *mut c_void,
        from: DevicePtr<T>,
        len: usize,
    ) -> Result<(), DriverError> {
        if len == 0 {
            return Ok(());
        }
        self.device().bind()?;
        let bytes = len * size_of::<T>();
        // SAFETY: guaranteed by the caller.
        check("cuMemcpyDtoHAsync", unsafe {
            (self.device().functions().copy_to_host)(to, from.address(), bytes, self.raw())
        })
    }
}

pub(super) fn check_range(len: usize, at: usize, n: usize) {
    let fits = at.checked_add(n).is_some_and(|end| end <= len);
    assert!(fits, "{n} elements from {at} on exceed {len} elements");
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:?}, {} bytes)", self.start, self.bytes())
    }
}

impl<T> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} of {} bytes)", self.len, size_of::<T>())
    }
}
