//! An emulated CUDA driver that runs kernels on the CPU, for tests.
//!
//! The library runs the kernels of `kernels/*.cu`, compiled as C++ (`cusim.h`), through the functions of `libcuda`
//! (`driver/`). Streams run work as late as CUDA allows and memory is poisoned, so that a missing wait, a buffer that
//! is used too early and memory that was never written cause wrong results. Faults can be planned for each device.
//! Kernels and copies reach memory of their own device only. An emulated NCCL connects devices.
//!
//! The crate does not depend on the engine. Timings on the emulator say nothing about a GPU.

mod compiler;
mod device;
mod nccl;

use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;

pub use compiler::compiler;
pub use device::{Counts, Device, Fault};
pub use nccl::{load_nccl, mismatch};

/// Path of the shared library `libcuda.so`. Its folder also has `libcuda.so.1` and `libnccl.so.2`, and can be used as
/// `LD_LIBRARY_PATH`.
pub fn library() -> &'static Path {
    Path::new(env!("CUSIM_LIBRARY"))
}

/// Loads the library into this process permanently: opening `libcuda.so` by name then returns this library.
///
/// # Panics
/// If the library cannot be loaded.
pub fn load() {
    loaded();
}

fn loaded() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: the library was built with this crate; its initialisers only fill the table of kernels.
        unsafe { Library::new(library()) }
            .unwrap_or_else(|error| panic!("{}: {error}", library().display()))
    })
}
