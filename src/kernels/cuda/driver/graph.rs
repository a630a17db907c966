//! CUDA graphs: launches captured once and replayed with one call.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cudarc::driver::sys::{CUgraphExec, CUstreamCaptureMode};

use super::device::Device;
use super::error::DriverError;
use super::stream::Stream;
use super::table::check;

/// Captured launches, which refer to buffers by address and do not keep them alive: buffers must outlive the graph.
pub struct Graph {
    device: Device,
    exec: CUgraphExec,
}

// SAFETY: a graph belongs to a context, not to a thread. It is not `Sync`: the driver does not lock graphs.
unsafe impl Send for Graph {}

/// Each capture holds this lock shared, and each synchronization of the context holds it exclusively: the driver ends
/// all captures in a context that another thread synchronizes.
pub(super) type ContextLock = RwLock<()>;

/// The lock of a GPU's primary context, shared by all [`Device`]s of the GPU. Ranks on other GPUs have other locks, so
/// a capture does not delay their synchronization.
pub(super) fn context_lock(ordinal: usize) -> Arc<ContextLock> {
    static LOCKS: Mutex<BTreeMap<usize, Arc<ContextLock>>> = Mutex::new(BTreeMap::new());
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    locks.entry(ordinal).or_default().clone()
}

thread_local! {
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
}

const CAPTURE_UNSUPPORTED: c_int = 900;

struct Capture<'a>(
    #[expect(dead_code, reason = "released with the capture")] RwLockReadGuard<'a, ()>,
);

impl<'a> Capture<'a> {
    fn begin(lock: &'a ContextLock) -> Result<Self, DriverError> {
        refuse_while_capturing("cuStreamBeginCapture")?;
        let guard = lock.read().unwrap_or_else(PoisonError::into_inner);
        IS_CAPTURING.set(true);
        Ok(Self(guard))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        IS_CAPTURING.set(false);
    }
}

/// Waits until no thread captures in the context, and lets none begin while the guard lives.
///
/// # Errors
/// If this thread is capturing: synchronization would end all captures in the context.
pub(super) fn lock_out_captures<'a>(
    lock: &'a ContextLock,
    call: &'static str,
) -> Result<RwLockWriteGuard<'a, ()>, DriverError> {
    refuse_while_capturing(call)?;
    Ok(lock.write().unwrap_or_else(PoisonError::into_inner))
}

fn refuse_while_capturing(call: &'static str) -> Result<(), DriverError> {
    if IS_CAPTURING.get() {
        Err(DriverError::new(call, CAPTURE_UNSUPPORTED))
    } else {
        Ok(())
    }
}

impl Stream {
    /// Captures the work that `work` enqueues on this stream (and on streams that fork from it and join it) instead of
    /// running it. Allocation, copies of unpinned memory and synchronization are errors meanwhile.
    ///
    /// # Errors
    /// The error of `work`, else the driver's error of the capture; nothing was run.
    pub fn capture<E: From<DriverError>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let device = self.device().clone();
        let functions = device.functions();
        device.bind()?;
        let capture = Capture::begin(device.context_lock())?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle is valid while `self` lives.
        let code = unsafe { (functions.stream_begin_capture)(self.raw(), mode) };
        check("cuStreamBeginCapture", code)?;
        // A panic must not leave the stream capturing: it could not be synchronized any more.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let mut graph = std::ptr::null_mut();
        // SAFETY: a capture was begun on this thread; `graph` outlives the call.
        let code = unsafe { (functions.stream_end_capture)(self.raw(), &mut graph) };
        let ended = check("cuStreamEndCapture", code);
        drop(capture);
        let instantiate = || -> Result<CUgraphExec, E> {
            ended?;
            let mut exec = std::ptr::null_mut();
            // SAFETY: `graph` is the finished capture, `exec` outlives the call.
            let code = unsafe { (functions.graph_instantiate)(&mut exec, graph, 0) };
            check("cuGraphInstantiate", code)?;
            Ok(exec)
        };
        let made = outcome.map(|outcome| outcome.and_then(|()| instantiate()));
        if !graph.is_null() {
            // SAFETY: made by the capture and no longer used: the executable graph does not depend on it.
            let _ = unsafe { (functions.graph_destroy)(graph) };
        }
        match made {
            Ok(made) => Ok(Graph {
                exec: made?,
                device,
            }),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Graph {
    /// Uploads the graph to the device, so that the first launch costs as much as later ones.
    pub fn upload(&self, stream: &Stream) -> Result<(), DriverError> {
        self.device.bind()?;
        // SAFETY: both handles are valid until drop.
        check("cuGraphUpload", unsafe {
            (self.device.functions().graph_upload)(self.exec, stream.raw())
        })
    }

    /// # Safety
    /// Every buffer of the captured launches and copies lives, and their pinned memory is not accessed, until `stream`
    /// has passed this point.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        self.device.bind()?;
        // SAFETY: both handles are valid until drop, the rest by the caller.
        check("cuGraphLaunch", unsafe {
            (self.device.functions().graph_launch)(self.exec, stream.raw())
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made in `capture`, destroyed once; a launch in flight is finished by the driver.
            let _ = unsafe { (self.device.functions().graph_exec_destroy)(self.exec) };
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:p})", self.exec)
    }
}
