//! The emulated NCCL: groups of ranks, each on its own emulated device.
//!
//! A collective is an operation of its stream. It waits until the streams of all ranks have reached theirs, and leaves
//! its device usable meanwhile. Sums are in rank order. Ranks whose calls differ fail their group, and then wait.

use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::{Library, Symbol};

use crate::device::function;

/// Loads the library into this process permanently, with the driver: opening `libnccl.so.2` by name then returns it.
///
/// # Panics
/// If the library cannot be loaded.
pub fn load_nccl() {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    crate::load();
    LIBRARY.get_or_init(|| {
        let path: PathBuf = crate::library().with_file_name("libnccl.so.2");
        // SAFETY: the library was built with this crate, and has no initialisers of its own.
        unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
}

/// The last collective in which calls of ranks differed, with both calls, if there was one in this process.
pub fn mismatch() -> Option<String> {
    let ask: Symbol<unsafe extern "C" fn(*mut u8, usize) -> usize> = function(b"cusim_mismatch");
    let mut text = vec![0; 1024];
    // SAFETY: the signature is that of driver/control.cpp; it writes no more than the length given, a NUL included.
    let written = unsafe { ask(text.as_mut_ptr(), text.len()) };
    text.truncate(written.min(text.len() - 1));
    (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
}
