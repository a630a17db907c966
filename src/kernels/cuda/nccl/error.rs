//! Errors of NCCL, and the reasons why it cannot be used.

use std::ffi::c_int;
use std::fmt;

use souffleur_base::error::StepError;

use crate::cuda::driver::DriverError;

/// In NCCL's notation: 10000 * major + 100 * minor + patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(c_int);

impl NcclVersion {
    /// The first version for CUDA 12.
    pub const NEEDED: Self = Self(21_600);

    pub(super) fn new(number: c_int) -> Self {
        Self(number)
    }

    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = *self;
        write!(
            f,
            "{}.{}.{}",
            number / 10_000,
            number / 100 % 100,
            number % 100
        )
    }
}

/// Why NCCL cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclUnavailable {
    #[error(
        "ranks on GPUs need NCCL, and libnccl.so.2 was not found, or refused by the loader: install NVIDIA's package \
         libnccl2, or nvidia-nccl-cu12 in the active Python environment, or add its folder to LD_LIBRARY_PATH"
    )]
    NotFound,
    #[error(
        "{library} has no function {function}: it is damaged or not NVIDIA's NCCL; reinstall it"
    )]
    MissingFunction {
        library: String,
        function: &'static str,
    },
    #[error(
        "{library} is NCCL {found}, ranks on GPUs need {} or newer",
        NcclVersion::NEEDED
    )]
    TooOld { library: String, found: NcclVersion },
    #[error("{library} does not tell its version: status {status}; reinstall NCCL")]
    Version { library: String, status: i32 },
}

/// A failure of a rank's collectives. The other ranks may wait for this one: their communicators must be aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    #[error(transparent)]
    Unavailable(#[from] NcclUnavailable),
    /// NCCL refused a call, or reports the failure of an earlier collective.
    #[error("{call} failed on rank {rank}: {text} (status {code})")]
    Failed {
        call: &'static str,
        rank: usize,
        code: i32,
        text: String,
    },
    #[error("{call} was not called on rank {rank}: its communicator was aborted")]
    Aborted { call: &'static str, rank: usize },
    /// Refused before NCCL was called.
    #[error("{call}: {text}")]
    Invalid { call: &'static str, text: String },
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl NcclError {
    /// The error that ends a step. The results of other ranks are invalid too, whatever this rank has launched.
    pub fn into_step_error(self) -> StepError {
        StepError::Lost(self.to_string())
    }
}
