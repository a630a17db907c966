//! A rank's communicator of NCCL, which the rank's thread uses and a watchdog may end.

use std::ffi::c_int;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use cudarc::nccl::sys::ncclComm_t;

use super::error::NcclError;
use super::library::Nccl;
use crate::cuda::driver::Device;

/// How long an abort waits for calls of the communicator that have not returned. A call that waits for another rank
/// returns only because of the abort.
const LONGEST_CALL: Duration = Duration::from_millis(200);
/// How long the drop of a communicator waits for its abort, which waits for the communicator's graphs.
const LONGEST_ABORT: Duration = Duration::from_secs(10);

pub(super) struct Shared {
    pub(super) nccl: &'static Nccl,
    pub(super) device: Device,
    rank: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    stage: Stage,
    /// Calls of NCCL in flight.
    n_calls: usize,
    has_failed: bool,
}

enum Stage {
    Open(Handle),
    /// The abort has not begun.
    Aborting(Handle),
    /// NCCL frees the communicator, or has freed it.
    Closing,
    Closed,
}

#[derive(Clone, Copy)]
struct Handle(ncclComm_t);

// SAFETY: a communicator belongs to no thread.
unsafe impl Send for Handle {}

impl Shared {
    pub(super) fn new(nccl: &'static Nccl, device: Device, rank: usize, raw: ncclComm_t) -> Self {
        let state = State {
            stage: Stage::Open(Handle(raw)),
            n_calls: 0,
            has_failed: false,
        };
        Self {
            nccl,
            device,
            rank,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Calls a function of NCCL with the communicator.
    ///
    /// # Errors
    /// The function's error; that the communicator was aborted.
    pub(super) fn call(
        &self,
        name: &'static str,
        function: impl FnOnce(ncclComm_t) -> c_int,
    ) -> Result<(), NcclError> {
        let handle = self.enter(name)?;
        let code = function(handle.0);
        let result = self.nccl.check((name, self.rank), code, handle.0);
        let mut state = self.state();
        state.n_calls -= 1;
        state.has_failed |= result.is_err();
        drop(state);
        self.changed.notify_all();
        result
    }

    fn enter(&self, call: &'static str) -> Result<Handle, NcclError> {
        let mut state = self.state();
        match state.stage {
            Stage::Open(handle) => {
                state.n_calls += 1;
                Ok(handle)
            }
            Stage::Aborting(_) | Stage::Closing | Stage::Closed => Err(NcclError::Aborted {
                call,
                rank: self.rank,
            }),
        }
    }

    /// Ends the communicator once its rank no longer uses it: destroys it if no call has failed, else aborts it.
    pub(super) fn end(self: &Arc<Self>) {
        let has_failed = self.state().has_failed || thread::panicking();
        if !has_failed && self.destroy() {
            return;
        }
        self.abort();
        let is_open = |state: &mut State| !matches!(state.stage, Stage::Closed);
        let state = self.state();
        let waited = self
            .changed
            .wait_timeout_while(state, LONGEST_ABORT, is_open);
        let (_state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            let rank = self.rank;
            tracing::warn!(rank, "NCCL has not ended an aborted communicator");
        }
    }

    /// False if the communicator was aborted, also while this waits for the GPU, or its context is lost.
    fn destroy(&self) -> bool {
        let destroy = |handle: Handle| {
            // SAFETY: made by `ncclCommInitRank`, destroyed once, and no call uses it: it is not open any more, and the
            // rank has ended.
            unsafe { (self.nccl.functions.destroy)(handle.0) }
        };
        let destroyed = self.device.when_idle(|| self.close().map(destroy));
        let Ok(Some(code)) = destroyed else {
            return false;
        };
        self.state().stage = Stage::Closed;
        self.log("ncclCommDestroy", code);
        true
    }

    fn close(&self) -> Option<Handle> {
        let mut state = self.state();
        let Stage::Open(handle) = state.stage else {
            return None;
        };
        state.stage = Stage::Closing;
        Some(handle)
    }

    /// Logs the failure of a call that frees the communicator, which no caller can handle.
    fn log(&self, call: &'static str, code: c_int) {
        let result = self.nccl.check((call, self.rank), code, ptr::null_mut());
        if let Err(error) = result {
            tracing::warn!(%error, "failed to end a communicator of NCCL");
        }
    }

    /// See [`Aborter::abort`].
    fn abort(self: &Arc<Self>) {
        {
            let mut state = self.state();
            let Stage::Open(handle) = state.stage else {
                return;
            };
            state.stage = Stage::Aborting(handle);
            state.has_failed = true;
        }
        let shared = self.clone();
        let thread = thread::Builder::new().name(format!("nccl-abort-{}", self.rank));
        if let Err(error) = thread.spawn(move || shared.abort_now()) {
            tracing::warn!(%error, "failed to start a thread for an abort of NCCL");
            self.abort_now();
        }
    }

    fn abort_now(&self) {
        let is_called = |state: &mut State| state.n_calls > 0;
        let state = self.state();
        let waited = self
            .changed
            .wait_timeout_while(state, LONGEST_CALL, is_called);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Stage::Aborting(handle) = state.stage else {
            return;
        };
        state.stage = Stage::Closing;
        drop(state);
        // A lost context is current too. An error of this call cannot be handled.
        let _ = self.device.bind();
        let abort = self.nccl.functions.abort;
        // SAFETY: made by `ncclCommInitRank`, freed once. No later call uses it. A call that has not returned waits for
        // ranks that do not come: NCCL ends it.
        let code = unsafe { abort(handle.0) };
        self.log("ncclCommAbort", code);
        self.state().stage = Stage::Closed;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the collectives of one rank, from any thread. Keeps neither the communicator nor the GPU's context alive.
#[derive(Clone)]
pub struct Aborter {
    rank: usize,
    shared: Weak<Shared>,
}

impl Aborter {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            rank: shared.rank,
            shared: Arc::downgrade(shared),
        }
    }

    /// Ends the rank's collective that runs, if one does: its stream passes it, with undefined data. Later calls of the
    /// rank are refused. Does nothing if the communicator was aborted or dropped before.
    ///
    /// The ranks of a group wait for each other: abort all of them. Returns at once: NCCL frees the communicator on
    /// another thread, once the rank has dropped the graphs with its collectives.
    pub fn abort(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.abort();
        }
    }

    /// Whether the communicator was aborted or dropped.
    pub fn is_aborted(&self) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return true;
        };
        let state = shared.state();
        !matches!(state.stage, Stage::Open(_))
    }
}

impl fmt::Debug for Aborter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aborter(rank {})", self.rank)
    }
}
