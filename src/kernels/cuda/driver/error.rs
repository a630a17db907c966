//! Errors of the CUDA driver, and the reasons why no GPU is available.

use std::error::Error;
use std::ffi::c_int;
use std::fmt;

use super::device::CudaVersion;
use super::table::Functions;
use souffleur_base::error::{LoadError, StepError};

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const STUB_LIBRARY: c_int = 34;
const DEVICE_UNAVAILABLE: c_int = 46;
const NO_DEVICE: c_int = 100;
const INVALID_IMAGES: [c_int; 6] = [200, 209, 218, 221, 222, 223];
const INVALID_HANDLES: [c_int; 3] = [400, 401, 500];
pub(super) const NOT_READY: c_int = 600;
const LAUNCH_OUT_OF_RESOURCES: c_int = 701;
const NOT_SUPPORTED: [c_int; 2] = [800, 801];
const SYSTEM_NOT_READY: c_int = 802;
const DRIVER_MISMATCH: c_int = 803;
/// [`DriverError::call`] of errors that this crate returns and not the driver.
const KERNELS: &str = "kernels";
/// Added to the codes of other libraries: greater than every code of the driver.
const LIBRARY_CODES: c_int = 100_000;
const CAPTURE: std::ops::RangeInclusive<c_int> = 900..=908;
/// Errors after which, by the documentation of CUDA, "the process must be terminated and relaunched", and uncorrectable
/// errors of memory (214) and links (220). Often a new context nevertheless works.
const NEED_NEW_PROCESS: [c_int; 13] = [
    214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721,
];

/// A call that the driver refused, or that reported an earlier failure on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    pub call: &'static str,
    pub code: i32,
    pub name: &'static str,
    pub text: String,
}

impl fmt::Display for DriverError {
    /// An error that the driver did not return is shown without a code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            call, code, name, ..
        } = self;
        if *call != KERNELS {
            write!(f, "{call}: {name} ({code}): ")?;
        }
        f.write_str(&self.text)
    }
}

impl Error for DriverError {}

impl DriverError {
    pub(super) fn new(call: &'static str, code: c_int) -> Self {
        let (name, text) = Functions::describe(code);
        Self {
            call,
            code,
            name,
            text: text.to_owned(),
        }
    }

    /// An invalid call, rejected before it reached the driver, with the driver's code for invalid values.
    pub(super) fn invalid(call: &'static str, text: String) -> Self {
        Self {
            call,
            code: INVALID_VALUE,
            name: "CUDA_ERROR_INVALID_VALUE",
            text,
        }
    }

    pub(in super::super) fn unsupported(text: String) -> Self {
        Self {
            call: KERNELS,
            code: NOT_SUPPORTED[1],
            name: "CUDA_ERROR_NOT_SUPPORTED",
            text,
        }
    }

    /// An error of a library on top of the driver; its codes are not the driver's, so it never counts as a refusal.
    pub(in super::super) fn of_library(
        call: &'static str,
        name: &'static str,
        code: c_int,
    ) -> Self {
        Self {
            call,
            code: LIBRARY_CODES + code,
            name,
            text: format!("status {code}"),
        }
    }

    pub(super) fn with_text(mut self, text: &str) -> Self {
        if !text.is_empty() {
            self.text = text.to_owned();
        }
        self
    }

    /// Whether only the call was rejected and the context is intact. All other codes, including unknown ones, may
    /// report an earlier kernel failure: then no result of the context can be trusted.
    pub fn is_refusal(&self) -> bool {
        match self.code {
            INVALID_VALUE | OUT_OF_MEMORY | NOT_READY | LAUNCH_OUT_OF_RESOURCES => true,
            code => {
                INVALID_IMAGES.contains(&code)
                    || INVALID_HANDLES.contains(&code)
                    || NOT_SUPPORTED.contains(&code)
                    || CAPTURE.contains(&code)
            }
        }
    }

    /// Whether device memory or pinned memory is exhausted.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }

    /// Whether no context of this process works, if a new one returns this error.
    fn needs_new_process(&self) -> bool {
        NEED_NEW_PROCESS.contains(&self.code)
    }

    /// The error that ends a step: [`StepError::Rejected`] when the driver refused a call and nothing of the step was
    /// launched before it.
    pub fn into_step_error(self, launched: LaunchState) -> StepError {
        if self.is_refusal() && launched == LaunchState::Nothing {
            StepError::Rejected(self.to_string())
        } else {
            StepError::Lost(self.to_string())
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchState {
    Nothing,
    /// At least one kernel or copy of the step.
    Something,
}

/// Why no GPU can be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaUnavailable {
    #[error(
        "no CUDA driver: libcuda.so.1 was not found; install NVIDIA's driver, 525 or newer, or use --device cpu"
    )]
    NoDriver,
    #[error(
        "failed to load the CUDA driver: {0}; reinstall NVIDIA's driver, or remove the file's folder from LD_LIBRARY_PATH"
    )]
    Unloadable(String),
    #[error(
        "the CUDA driver is too old: it supports CUDA {found}, {} is needed; install driver 525 or newer",
        CudaVersion::NEEDED
    )]
    TooOld {
        /// The version that the driver supports.
        found: CudaVersion,
    },
    /// The library lacks a function that drivers of its version have.
    #[error(
        "the CUDA driver has no function {0}: libcuda.so.1 is damaged or not NVIDIA's; reinstall the driver"
    )]
    MissingFunction(&'static str),
    #[error("failed to initialise the CUDA driver: {error}; {advice}")]
    Init {
        error: DriverError,
        advice: &'static str,
    },
    #[error(
        "the CUDA driver found no GPU; check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, that it was \
         started with GPUs, or use --device cpu"
    )]
    NoDevice,
    #[error(
        "there is no GPU {ordinal}: the CUDA driver found {n_devices}, numbered from 0; choose another --device cuda:N"
    )]
    NoSuchDevice {
        ordinal: usize,
        /// GPUs visible to this process.
        n_devices: usize,
    },
    #[error(
        "GPU {ordinal} ({name}) has compute capability {}.{}, the kernels need 8.0 (Ampere); choose another \
         --device cuda:N, or use --device cpu",
        capability.0, capability.1
    )]
    TooOldDevice {
        ordinal: usize,
        name: String,
        capability: (u32, u32),
    },
    #[error(
        "failed to create a context on GPU {ordinal}: {error}; check in nvidia-smi whether other processes hold its \
         memory or it is in exclusive mode"
    )]
    Context {
        /// Index among the visible GPUs.
        ordinal: usize,
        error: DriverError,
    },
    #[error(
        "failed to allocate {bytes} bytes on GPU {ordinal}: {error}; see in nvidia-smi which processes hold its memory"
    )]
    FirstAllocation {
        ordinal: usize,
        bytes: usize,
        error: DriverError,
    },
    /// A context returns an error that it has not caused.
    #[error(
        "GPU {ordinal} has failed in this process: {error}; the process must be terminated and relaunched"
    )]
    Lost { ordinal: usize, error: DriverError },
    /// Several engines had the GPU open.
    #[error(
        "GPU {ordinal} has lost its context, which several engines of this process shared: {error}; none of them can \
         renew it, so all of them end: start them again"
    )]
    SharedContextLost { ordinal: usize, error: String },
    /// Several replicas of one engine had the GPU open.
    #[error(
        "GPU {ordinal} has lost its context, and another replica of the model on it has not released it yet"
    )]
    NotReleased { ordinal: usize },
    #[error("failed to query GPU {ordinal}: {error}")]
    Query {
        /// Index among the visible GPUs.
        ordinal: usize,
        error: DriverError,
    },
}

impl CudaUnavailable {
    pub(super) fn context(ordinal: usize, error: DriverError) -> Self {
        if error.needs_new_process() {
            Self::Lost { ordinal, error }
        } else {
            Self::Context { ordinal, error }
        }
    }

    pub(super) fn first_allocation(ordinal: usize, bytes: usize, error: DriverError) -> Self {
        if error.needs_new_process() {
            Self::Lost { ordinal, error }
        } else {
            Self::FirstAllocation {
                ordinal,
                bytes,
                error,
            }
        }
    }

    pub(super) fn init(error: DriverError) -> Self {
        let advice = match error.code {
            NO_DEVICE => return Self::NoDevice,
            STUB_LIBRARY => {
                "the libcuda found is the toolkit's stub: remove its folder from LD_LIBRARY_PATH"
            }
            DEVICE_UNAVAILABLE => {
                "another process has exclusive use of the GPU: end it, or choose another GPU"
            }
            SYSTEM_NOT_READY => {
                "the driver's services are not running: on machines with NVSwitch, start nvidia-fabricmanager"
            }
            DRIVER_MISMATCH => {
                "libcuda and the kernel module have different versions: reboot, or reload the module"
            }
            _ => "check nvidia-smi and the Linux kernel's log (dmesg)",
        };
        Self::Init { error, advice }
    }
}

impl CudaUnavailable {
    /// [`LoadError::DeviceLost`] if opening the GPU again fails too. No `From`: with two, `?` in closures that return a
    /// [`LoadError`] has no type.
    pub fn to_load_error(&self) -> LoadError {
        let text = self.to_string();
        match self {
            Self::Lost { .. } | Self::SharedContextLost { .. } => LoadError::DeviceLost(text),
            _ => LoadError::Device(text),
        }
    }
}
