//! Asks the system to read the program's file ahead, for a fast start.

/// Covers all that is loaded of the program; the debug information after it need not be read.
#[cfg(target_os = "linux")]
const LOADED_BYTES: std::num::NonZeroU64 = std::num::NonZeroU64::new(32 << 20).expect("not 0");

/// Has the system read the program's file while the program begins. Without that, a start whose program is not in the
/// page cache waits for one page after another, some 90 times, which takes seconds on a slow disk.
pub fn start() {
    // Any failure here, also a refused thread, makes a start slower, not wrong.
    #[cfg(target_os = "linux")]
    let _ = std::thread::Builder::new().spawn(|| {
        use rustix::fs::{Advice, fadvise};
        let _ = std::fs::File::open("/proc/self/exe")
            .map(|program| fadvise(program, 0, Some(LOADED_BYTES), Advice::WillNeed));
    });
}
