//! Loads cuBLASLt at run time: library file, functions, handle.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType,
    cudaDataType_t, cudaStream_t,
};

use crate::cuda::driver::{CudaVersion, Device, DriverError};
use crate::cuda::search;
use crate::cuda::symbols::library_functions;

const LIBRARY: &str = "libcublasLt.so";
/// Oldest major version whose file is searched by name.
const OLDEST_MAJOR: u32 = 12;
const NEWEST_MAJOR: u32 = 13;

library_functions! {
    Functions, sys -> cublasStatus_t;
    create: cublasLtCreate(*mut cublasLtHandle_t);
    destroy: cublasLtDestroy(cublasLtHandle_t);
    desc_create: cublasLtMatmulDescCreate(
        *mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t
    );
    desc_set: cublasLtMatmulDescSetAttribute(
        cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize
    );
    desc_destroy: cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t);
    layout_create: cublasLtMatrixLayoutCreate(
        *mut cublasLtMatrixLayout_t, cudaDataType, u64, u64, i64
    );
    layout_destroy: cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t);
    preference_create: cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t);
    preference_set: cublasLtMatmulPreferenceSetAttribute(
        cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize
    );
    preference_destroy: cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t);
    heuristic: cublasLtMatmulAlgoGetHeuristic(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int,
        *mut cublasLtMatmulHeuristicResult_t, *mut c_int
    );
    matmul: cublasLtMatmul(
        cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void,
        cublasLtMatrixLayout_t, *const c_void, cublasLtMatrixLayout_t, *const c_void,
        *const c_void, cublasLtMatrixLayout_t, *mut c_void, cublasLtMatrixLayout_t,
        *const cublasLtMatmulAlgo_t, *mut c_void, usize, cudaStream_t
    );
}

pub(super) struct Handle {
    pub(super) functions: &'static Functions,
    pub(super) raw: cublasLtHandle_t,
    device: Device,
}

impl Handle {
    /// # Errors
    /// If cuBLASLt is not installed or fails to initialise.
    pub(super) fn new(device: &Device) -> Result<Self, String> {
        let functions = open(device.info().driver)?;
        let mut raw = std::ptr::null_mut();
        // The library uses the current context. SAFETY: `raw` outlives the call.
        let status = device.when_idle(|| unsafe { (functions.create)(&mut raw) });
        status
            .and_then(|status| check("cublasLtCreate", status))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            functions,
            raw,
            device: device.clone(),
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let destroy = self.functions.destroy;
        // Destruction synchronizes the context. SAFETY: created once; no work of the handle is running any more.
        let _ = self.device.when_idle(|| unsafe { destroy(self.raw) });
    }
}

pub(super) fn is_installed(device: &Device) -> bool {
    open(device.info().driver).is_ok()
}

/// Opens only the first library that has every function, as each library takes hundreds of megabytes.
fn open(driver: CudaVersion) -> Result<&'static Functions, String> {
    static FUNCTIONS: std::sync::OnceLock<Result<Functions, String>> = std::sync::OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        let mut reason = format!("{LIBRARY} not found, or refused by the loader");
        for path in candidates(driver, &search::folders("cublas")) {
            // SAFETY: this runs the library's initialisers, as any CUDA program does.
            let Ok(library) = (unsafe { libloading::Library::new(&path) }) else {
                continue;
            };
            // SAFETY: by its name, this is the library that the bindings describe.
            match unsafe { Functions::resolve(&library) } {
                Ok(functions) => {
                    // Never closed: its functions are called until the process ends.
                    std::mem::forget(library);
                    tracing::info!(library = %path.display(), "cuBLASLt loaded");
                    return Ok(functions);
                }
                Err(name) => reason = format!("{} lacks {name}", path.display()),
            }
        }
        Err(reason)
    });
    functions.as_ref().map_err(String::clone)
}

/// Candidate library files, best first: by the loader's search path, then by folder. The driver's major version comes
/// first, then older ones, which it also supports, then newer ones, which it may refuse.
fn candidates(driver: CudaVersion, folders: &[PathBuf]) -> Vec<PathBuf> {
    let major = u32::try_from(driver.number() / 1000).unwrap_or(0);
    let by_loader = OLDEST_MAJOR..=major.max(NEWEST_MAJOR);
    let mut by_loader: Vec<_> = by_loader
        .map(|major| PathBuf::from(format!("{LIBRARY}.{major}")))
        .collect();
    by_loader.sort_by_key(|path| rank(major, path));
    let mut all = vec![PathBuf::from(LIBRARY)];
    all.extend(by_loader);
    for folder in folders {
        let mut found = search::entries(folder, LIBRARY);
        found.sort_by_key(|path| rank(major, path));
        all.extend(found);
    }
    all
}

/// Rank of a file for a driver of this major version; 0 is the driver's own major version.
fn rank(driver_major: u32, path: &Path) -> u32 {
    const UNKNOWN: u32 = 1000;
    const NEWER: u32 = 2000;
    let name = path.file_name().and_then(|name| name.to_str());
    let version = name.and_then(|name| name.strip_prefix(LIBRARY)?.strip_prefix('.'));
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match major {
        None => UNKNOWN,
        Some(major) if major > driver_major => NEWER.saturating_add(major),
        Some(major) => driver_major - major,
    }
}

pub(super) fn check(call: &'static str, status: c_int) -> Result<(), DriverError> {
    match status {
        0 => Ok(()),
        status => Err(DriverError::of_library(call, "cublasStatus", status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_driver_is_preferred_in_each_folder() {
        let folders =
            [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder can be made"));
        let names = ["", ".11", ".12", ".12.9.1.4", ".13"];
        for name in names {
            let path = folders[0].path().join(format!("{LIBRARY}{name}"));
            std::fs::write(path, "").expect("the file can be written");
        }
        std::fs::write(folders[1].path().join("libcublasLt.so.12"), "")
            .expect("the file can be written");
        let paths = folders.each_ref().map(|folder| folder.path().to_owned());
        let names_for = |driver: CudaVersion| -> Vec<String> {
            let all = candidates(driver, &paths).into_iter();
            let name = |path: PathBuf| {
                let name = path
                    .file_name()
                    .expect("a candidate must name a file")
                    .to_string_lossy();
                let kind = match path.parent() {
                    Some(parent) if parent == paths[0] => "0",
                    Some(parent) if parent == paths[1] => "1",
                    _ => "loader",
                };
                format!("{kind}{}", name.trim_start_matches(LIBRARY))
            };
            all.map(name).collect()
        };
        let of_12 = names_for(CudaVersion::NEEDED);
        let expected = [
            "loader",
            "loader.12",
            "loader.13",
            "0.12",
            "0.12.9.1.4",
            "0.11",
            "0",
            "0.13",
            "1.12",
        ];
        assert_eq!(of_12, expected);
    }
}
