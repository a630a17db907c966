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

/// Path of the shared library. Its folder, which can be used as `LD_LIBRARY_PATH`, also has it as `libcuda.so.1`.
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
