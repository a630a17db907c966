//! The part of the CUDA driver API that the engine uses.
//!
//! A [`Device`] is a GPU with its context; streams, events, buffers, modules and graphs come from it and keep it alive.
//! Every failure is a [`DriverError`]; nothing here panics for a failure of the driver or the GPU.
//!
//! Calls go through our own function table, filled once when the driver is opened, and not through cudarc's wrappers:
//! those panic when the driver lacks a function, hold results in an enum that only knows the codes of one version,
//! order every use of a buffer by events that break graph capture, and keep errors of drops for a later call. cudarc
//! finds the library and declares the types.
//!
//! **`Send` and `Sync`.** The driver may be called from any thread, if the context is current there: each operation makes
//! it so first (a comparison when it is already). Handles are therefore `Send`. Streams and events are `Sync` too, as
//! the driver locks them itself; graphs are not, as it does not.

mod device;
mod error;
mod graph;
mod kernel;
mod memory;
mod pinning;
mod stream;
mod table;
mod upload;

pub use device::{CudaVersion, Device, DeviceInfo, DeviceMemory, installed, probe};
pub use error::{CudaUnavailable, DriverError, Launched};
pub use graph::Graph;
pub use kernel::{Grid, Kernel, KernelArg, KernelArgs, Module};
pub use memory::{DeviceBuffer, DevicePtr, HostUse, PinnedBuffer};
pub use pinning::Pinning;
pub use stream::{Event, Priority, Stream};
pub use upload::Uploader;
