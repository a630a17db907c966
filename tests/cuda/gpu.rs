//! The GPU of the tests: the emulated one, or a real one if `SOUFFLEUR_TEST_GPU` names its number.

// Kernels are handed to the driver as images.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use souffleur_base::error::LoadError;
use souffleur_kernels::cuda::driver::Device;
use souffleur_kernels::cuda::pack::Modules;

const REAL: &str = "SOUFFLEUR_TEST_GPU";

/// The number of the real GPU to test on, if there is one.
pub fn real() -> Option<usize> {
    let ordinal = std::env::var(REAL).ok().filter(|text| !text.is_empty())?;
    Some(ordinal.parse().unwrap_or_else(|_| {
        panic!("{REAL} is {ordinal:?}, expected the number of a GPU or nothing")
    }))
}

/// Whether to test large shapes: `SOUFFLEUR_TEST_SMALL` omits them for tools that check every memory access.
pub fn is_thorough() -> bool {
    real().is_some() && std::env::var_os("SOUFFLEUR_TEST_SMALL").is_none()
}

/// The number of an emulated device that no other test uses, so that tests run their kernels concurrently.
pub fn unused() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(100);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens a GPU: emulated device `emulated` with the tests' own kernels, or the real one with the engine's kernels.
pub fn open(emulated: usize) -> (Device, Modules) {
    let Some(ordinal) = real() else {
        souffleur_cusim::load();
        // The emulated driver has one device until others are added.
        let _ = souffleur_cusim::Device::new(emulated);
        let device = Device::open(emulated).unwrap();
        // SAFETY: to the emulated driver this text is an image that has every kernel.
        let modules = unsafe { Modules::from_images(&device, |_| b"cusim\0".to_vec()) }.unwrap();
        return (device, modules);
    };
    let device = Device::open(ordinal).unwrap();
    let modules = Modules::load(&device).unwrap();
    (device, modules)
}

/// The tests' own kernels for an emulated GPU.
pub fn kernels(device: &Device) -> Result<Modules, LoadError> {
    // SAFETY: to the emulated driver this text is an image that has every kernel.
    let modules = unsafe { Modules::from_images(device, |_| b"cusim\0".to_vec()) };
    modules.map_err(|error| LoadError::Device(error.to_string()))
}

/// The root of the repository. `SOUFFLEUR_REPOSITORY` sets it for a test binary that was copied elsewhere.
pub fn repository() -> PathBuf {
    std::env::var_os("SOUFFLEUR_REPOSITORY")
        .map_or_else(|| crate::repository::repository().to_owned(), PathBuf::from)
}
