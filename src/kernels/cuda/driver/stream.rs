//! CUDA streams, and the events that order them.

use std::ffi::c_uint;
use std::fmt;

use cudarc::driver::sys::{CUevent, CUstream};

use super::device::Device;
use super::error::{DriverError, NOT_READY};
use super::table::check;

/// Flag: work is not ordered with the legacy default stream, which this program never uses.
const NON_BLOCKING: c_uint = 1;
const UNTIMED: c_uint = 2;

/// If thread blocks of several streams are ready, those of the stream with the higher priority run first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Low,
    High,
}

/// An ordered queue of device work. Only events order the work of different streams.
pub struct Stream {
    device: Device,
    raw: CUstream,
}

// SAFETY: a stream belongs to a context, not to a thread.
unsafe impl Send for Stream {}
// SAFETY: the driver locks a stream in every call.
unsafe impl Sync for Stream {}

pub struct Event {
    device: Device,
    raw: CUevent,
}

// SAFETY: an event belongs to a context, not to a thread.
unsafe impl Send for Event {}
// SAFETY: the driver locks an event in every call.
unsafe impl Sync for Event {}

impl Device {
    pub fn stream(&self, priority: Priority) -> Result<Stream, DriverError> {
        self.bind()?;
        let (least, most) = self.priorities();
        let priority = match priority {
            Priority::Low => least,
            Priority::High => most,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call, the context is current.
        let code = unsafe { (self.functions().stream_create)(&mut raw, NON_BLOCKING, priority) };
        check("cuStreamCreateWithPriority", code)?;
        Ok(Stream {
            device: self.clone(),
            raw,
        })
    }

    /// Creates an event without a timestamp, which counts as reached until it is recorded.
    pub fn event(&self) -> Result<Event, DriverError> {
        self.make_event(UNTIMED)
    }

    /// Creates an event with a timestamp, which makes the event slower.
    pub fn timed_event(&self) -> Result<Event, DriverError> {
        self.make_event(0)
    }

    fn make_event(&self, flags: c_uint) -> Result<Event, DriverError> {
        self.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call, the context is current.
        let code = unsafe { (self.functions().event_create)(&mut raw, flags) };
        check("cuEventCreate", code)?;
        Ok(Event {
            device: self.clone(),
            raw,
        })
    }
}

impl Stream {
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits for all work enqueued so far.
    ///
    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.device.bind()?;
        // SAFETY: the handle is valid until drop.
        check("cuStreamSynchronize", unsafe {
            (self.device.functions().stream_synchronize)(self.raw)
        })
    }

    /// Sets `event` to the point after all work enqueued so far.
    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        self.device.bind()?;
        // SAFETY: both handles are valid until drop.
        check("cuEventRecord", unsafe {
            (self.device.functions().event_record)(event.raw, self.raw)
        })
    }

    /// Makes work enqueued from now on wait for the point that `event` marks now.
    pub fn wait(&self, event: &Event) -> Result<(), DriverError> {
        self.device.bind()?;
        // SAFETY: both handles are valid until drop; the driver keeps the event's state while it needs it.
        check("cuStreamWaitEvent", unsafe {
            (self.device.functions().stream_wait)(self.raw, event.raw, 0)
        })
    }
}

impl Event {
    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    pub fn is_reached(&self) -> Result<bool, DriverError> {
        self.device.bind()?;
        // SAFETY: the handle is valid until drop.
        match unsafe { (self.device.functions().event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.device.bind()?;
        // SAFETY: the handle is valid until drop.
        check("cuEventSynchronize", unsafe {
            (self.device.functions().event_synchronize)(self.raw)
        })
    }

    /// Milliseconds between two events, which must be timed and reached.
    pub fn ms_since(&self, start: &Event) -> Result<f32, DriverError> {
        self.device.bind()?;
        let mut ms = 0.0;
        // SAFETY: both handles are valid until drop, `ms` outlives the call.
        let code = unsafe { (self.device.functions().event_elapsed)(&mut ms, start.raw, self.raw) };
        check("cuEventElapsedTime", code)?;
        Ok(ms)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made in `stream`, destroyed once. Work in flight is finished by the driver. An error cannot be
            // handled.
            let _ = unsafe { (self.device.functions().stream_destroy)(self.raw) };
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made in `make_event`, destroyed once; the driver keeps its state while streams wait for it.
            let _ = unsafe { (self.device.functions().event_destroy)(self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p})", self.raw)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.raw)
    }
}
