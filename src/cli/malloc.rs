//! Sets parameters of glibc's `malloc`, which `mallopt(3)` describes.

#![allow(unsafe_code)]

/// Makes `malloc` return freed memory to the system.
///
/// By default, the first large `free` raises the thresholds up to 32 and 64 MiB, and each of up to eight arenas a core
/// keeps that much: after rebuilds of the engine, the buffers of its earlier units. Does nothing if the environment
/// sets parameters of `malloc`, or with another C library.
pub fn set_parameters() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !is_set_by_environment() {
        const THRESHOLD_BYTES: libc::c_int = 256 << 10;
        let n_cores = std::thread::available_parallelism().map_or(1, |n_cores| n_cores.get());
        let n_arenas = libc::c_int::try_from(n_cores).unwrap_or(libc::c_int::MAX);
        for (parameter, value) in [
            (libc::M_MMAP_THRESHOLD, THRESHOLD_BYTES),
            (libc::M_TRIM_THRESHOLD, THRESHOLD_BYTES),
            (libc::M_ARENA_MAX, n_arenas.max(2)),
        ] {
            // SAFETY: The call only writes a parameter of `malloc`, under its lock.
            // Ignores failures, after which the default stays.
            let _ = unsafe { libc::mallopt(parameter, value) };
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn is_set_by_environment() -> bool {
    let mut names = std::env::vars_os().map(|(name, _)| name);
    names.any(|name| name == "GLIBC_TUNABLES" || name.as_encoded_bytes().starts_with(b"MALLOC_"))
}
