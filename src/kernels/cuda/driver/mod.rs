//! Safe wrapper of the part of the CUDA driver API that the engine uses.
//!
//! A [`Device`] is a GPU with its context, kept alive by the streams, events, buffers, modules and graphs made from it.
//! Failures of the driver or the GPU are [`DriverError`]s, never panics.
//!
//! Calls go through our own function table, filled when the driver is opened, and not through cudarc's wrappers: those
//! panic if the driver lacks a function, hold results in an enum with the codes of one version, order every use of a
//! buffer by events that break graph capture, and keep errors of drops for a later call. cudarc finds the library and
//! declares the types.
//!
//! **`Send` and `Sync`.** The driver may be called from any thread to which the context is current: each operation
//! makes it current first (only a comparison if it already is). Handles are therefore `Send`. Streams and events are
//! also `Sync`, as the driver locks them itself; it does not lock graphs.

mod claim;
mod device;
mod error;
mod graph;
mod kernel;
mod memory;
mod pinning;
mod stream;
mod table;
mod upload;

pub use claim::Claim;
pub use device::{CudaVersion, Device, DeviceInfo, DeviceMemory, count, installed, probe};
pub use error::{CudaUnavailable, DriverError, LaunchState};
pub use graph::Graph;
pub use kernel::{Grid, Kernel, KernelArg, KernelArgs, Module};
pub use memory::{DeviceBuffer, DevicePtr, HostUse, PinnedBuffer};
pub use pinning::Pinning;
pub use stream::{Event, Priority, Stream};
pub use upload::Uploader;
