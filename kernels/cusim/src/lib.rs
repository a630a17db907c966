//! A CUDA driver whose device is the CPU, for tests.
//!
//! The library runs the kernels of `kernels/*.cu`, compiled as C++ (`cusim.h`), through the functions of `libcuda`
//! (`driver/`). Streams are as lazy as CUDA allows and memory is poisoned, so that a missing wait, a buffer that is
//! used too early and memory that was never written show as wrong results. Faults can be planned for each device.
//!
//! It does not depend on the engine, and its results say nothing about speed.

mod compiler;
mod device;

use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;

pub use compiler::compiler;
pub use device::{Counts, Device, Fault};

/// The shared library. Its folder has it as `libcuda.so` and `libcuda.so.1`, for the `LD_LIBRARY_PATH` of a process.
pub fn library() -> &'static Path {
    Path::new(env!("CUSIM_LIBRARY"))
}

/// Loads the library into this process permanently: from then on opening `libcuda.so` by name returns it.
///
/// # Panics
/// If it cannot be loaded.
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
