//! Advises the kernel to read the program's executable ahead, for a fast start.

/// Covers the loaded part of the executable, without the debug information after it.
#[cfg(target_os = "linux")]
const LOADED_BYTES: std::num::NonZeroU64 = std::num::NonZeroU64::new(32 << 20).expect("not 0");

/// Starts the readahead in a thread. Without it, a program that is not in the page cache waits for about 90 page reads
/// one after another at its start, which takes seconds on a slow disk.
pub fn start() {
    // Ignores errors, which only make the start slower.
    #[cfg(target_os = "linux")]
    let _ = std::thread::Builder::new().spawn(|| {
        use rustix::fs::{Advice, fadvise};
        let _ = std::fs::File::open("/proc/self/exe")
            .map(|program| fadvise(program, 0, Some(LOADED_BYTES), Advice::WillNeed));
    });
}
