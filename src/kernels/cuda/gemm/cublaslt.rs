//! cuBLASLt, which is faster than our kernels, 400 MB large and no part of the driver.
//!
//! It is asked once for each shape which algorithm to use; the answer is kept. Everything is turned round: it thinks in
//! columns, so that our `[m, n]` is its `n` by `m`.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
    cublasStatus_t, cudaDataType, cudaDataType_t, cudaStream_t,
};
use rustc_hash::FxHashMap;

use super::super::driver::{CudaVersion, Device, DeviceBuffer, DriverError, Stream};
use super::super::params::{ElementType, GemmParams, GemmWrite};
use super::super::search;
use super::super::symbols::library_functions;

const LIBRARY: &str = "libcublasLt.so";
/// Versions that are looked for by name; newer ones where the driver is of one.
const OLDEST_MAJOR: u32 = 12;
const NEWEST_MAJOR: u32 = 13;
/// Prefills come in many lengths; beyond this the plans begin anew.
const MAX_PLANS: usize = 4096;
/// CUBLAS_OP_T of cublas_api.h, which the bindings leave out.
const TRANSPOSED: i32 = 1;
/// No algorithm asks for more.
const MAX_ALIGNMENT: u64 = 256;

library_functions! {
    /// What is called of cuBLASLt.
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

/// The library, and how each shape met so far is multiplied.
pub(super) struct CublasLt {
    /// `None`: it has no algorithm, or failed.
    plans: FxHashMap<Key, Option<Plan>>,
    /// Products that were left to our own kernels.
    n_left: u64,
    /// Said once each, and of the others only how many they are.
    has_said: Said,
    element: ElementType,
    /// Last, as plans are dropped before it.
    handle: Handle,
}

// SAFETY: handle and descriptors belong to no thread; they are used through `&mut` alone.
unsafe impl Send for CublasLt {}

#[derive(Clone, Copy, Debug, Default)]
struct Said {
    missing: bool,
    failed: bool,
}

struct Handle {
    functions: &'static Functions,
    device: Device,
    raw: cublasLtHandle_t,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    m: u32,
    n: u32,
    k: u32,
    write: GemmWrite,
    has_bias: bool,
    /// Of all addresses, in bytes.
    alignment: u32,
}

/// What is handed to the library for a shape.
struct Plan {
    desc: Desc,
    w: Layout,
    x: Layout,
    out: Layout,
    algorithm: cublasLtMatmulAlgo_t,
}

/// The same as the bindings', but for a status that may be one we do not know.
#[repr(C)]
struct Heuristic {
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Heuristic>() == size_of::<cublasLtMatmulHeuristicResult_t>());
const _: () = assert!(align_of::<Heuristic>() == align_of::<cublasLtMatmulHeuristicResult_t>());

impl CublasLt {
    /// Opens the library for a device.
    ///
    /// # Errors
    /// It is not there, or does not start.
    pub(super) fn load(device: &Device, element: ElementType) -> Result<Self, String> {
        let functions = open(device.info().driver)?;
        // The library takes the context that is current.
        device.synchronize().map_err(|error| error.to_string())?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call, a context is current.
        check("cublasLtCreate", unsafe { (functions.create)(&mut raw) })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            handle: Handle {
                functions,
                device: device.clone(),
                raw,
            },
            element,
            plans: FxHashMap::default(),
            n_left: 0,
            has_said: Said::default(),
        })
    }

    /// How many products it had no algorithm for, or failed at.
    pub(super) fn n_left(&self) -> u64 {
        self.n_left
    }

    /// Multiplies, or returns false where the library has no algorithm or fails: nothing was written then, and it is
    /// not asked again for this shape.
    ///
    /// # Safety
    /// As of the launches; `workspace` is used by one stream at a time.
    pub(super) unsafe fn multiply(
        &mut self,
        stream: &Stream,
        params: &GemmParams,
        workspace: &DeviceBuffer<u8>,
    ) -> bool {
        let key = Key::of(params);
        if self.plans.len() >= MAX_PLANS && !self.plans.contains_key(&key) {
            self.plans.clear();
        }
        let (handle, said) = (&self.handle, &mut self.has_said);
        let plan = self.plans.entry(key).or_insert_with(|| {
            let plan = Plan::new(handle, self.element, key, workspace.bytes());
            plan.inspect_err(|error| say_missing(&mut said.missing, key, error))
                .ok()
        });
        let done = match plan {
            // SAFETY: by the caller.
            Some(made) => match unsafe { made.multiply(handle, stream, params, workspace) } {
                Ok(()) => true,
                Err(error) => {
                    say_failed(&mut said.failed, key, &error);
                    *plan = None;
                    false
                }
            },
            None => false,
        };
        self.n_left += u64::from(!done);
        done
    }
}

/// Everybody wants to know that there are such shapes, nobody all of them.
fn say_missing(has_said: &mut bool, key: Key, error: &DriverError) {
    match std::mem::replace(has_said, true) {
        false => {
            tracing::info!(%error, ?key, "cuBLASLt has no product: our own kernel multiplies, here and wherever else it has none")
        }
        true => tracing::debug!(%error, ?key, "cuBLASLt has no product"),
    }
}

fn say_failed(has_said: &mut bool, key: Key, error: &DriverError) {
    match std::mem::replace(has_said, true) {
        false => {
            tracing::warn!(%error, ?key, "cuBLASLt failed: our own kernel multiplies from now on, here and wherever else it fails")
        }
        true => tracing::debug!(%error, ?key, "cuBLASLt failed"),
    }
}

impl Plan {
    /// Multiplies what has the plan's shape.
    ///
    /// # Safety
    /// As of [`CublasLt::multiply`].
    unsafe fn multiply(
        &self,
        handle: &Handle,
        stream: &Stream,
        params: &GemmParams,
        workspace: &DeviceBuffer<u8>,
    ) -> Result<(), DriverError> {
        let plan = self;
        if !params.bias.is_null() {
            let address = params.bias.address();
            let attribute = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            plan.desc.set(attribute, &address)?;
        }
        let one = 1.0_f32;
        let beta: f32 = match params.write {
            GemmWrite::AddF32 => 1.0,
            GemmWrite::Store | GemmWrite::StoreF32 => 0.0,
        };
        let address = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        let out = address(params.out.address());
        // SAFETY: the descriptors were made for this shape, scales are f32 as the type of scales says, the addresses are
        // by the caller, and the algorithm needs no more than the workspace.
        let status = unsafe {
            (handle.functions.matmul)(
                handle.raw,
                plan.desc.raw,
                (&raw const one).cast(),
                address(params.w.address()),
                plan.w.raw,
                address(params.x.address()),
                plan.x.raw,
                (&raw const beta).cast(),
                out,
                plan.out.raw,
                out,
                plan.out.raw,
                &plan.algorithm,
                address(workspace.ptr().address()),
                workspace.bytes(),
                stream.raw().cast(),
            )
        };
        check("cublasLtMatmul", status)
    }
}

impl Key {
    fn of(params: &GemmParams) -> Self {
        let addresses = params.out.address() | params.x.address() | params.w.address();
        Self {
            m: params.m,
            n: params.n,
            k: params.k,
            write: params.write,
            has_bias: !params.bias.is_null(),
            alignment: 1 << (addresses | MAX_ALIGNMENT).trailing_zeros(),
        }
    }
}

impl Plan {
    fn new(
        handle: &Handle,
        element: ElementType,
        key: Key,
        workspace_bytes: usize,
    ) -> Result<Self, DriverError> {
        let functions = handle.functions;
        let elements = match element {
            ElementType::F32 => cudaDataType::CUDA_R_32F,
            ElementType::Bf16 => cudaDataType::CUDA_R_16BF,
        };
        let result = match key.write {
            GemmWrite::Store => elements,
            GemmWrite::StoreF32 | GemmWrite::AddF32 => cudaDataType::CUDA_R_32F,
        };
        let (m, n, k) = (u64::from(key.m), u64::from(key.n), u64::from(key.k));
        let desc = Desc::new(functions, key.has_bias)?;
        let w = Layout::new(functions, elements, k, n)?;
        let x = Layout::new(functions, elements, k, m)?;
        let out = Layout::new(functions, result, n, m)?;
        let preference = Preference::new(functions, workspace_bytes, key.alignment)?;
        let mut found = std::mem::MaybeUninit::<Heuristic>::zeroed();
        let mut n_found = 0;
        // SAFETY: all handles were made here; room for the one result that is asked for, of the library's layout.
        let status = unsafe {
            (functions.heuristic)(
                handle.raw,
                desc.raw,
                w.raw,
                x.raw,
                out.raw,
                out.raw,
                preference.raw,
                1,
                found.as_mut_ptr().cast(),
                &mut n_found,
            )
        };
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        if n_found == 0 {
            return Err(DriverError::unsupported(format!(
                "no algorithm for {key:?}"
            )));
        }
        // SAFETY: numbers only, zeros are a value of it.
        let found = unsafe { found.assume_init() };
        check("cublasLtMatmulAlgoGetHeuristic", found.status)?;
        Ok(Self {
            desc,
            w,
            x,
            out,
            algorithm: found.algorithm,
        })
    }
}

struct Desc {
    functions: &'static Functions,
    raw: cublasLtMatmulDesc_t,
}

impl Desc {
    /// `w` transposed times `x`, summed in f32.
    fn new(functions: &'static Functions, has_bias: bool) -> Result<Self, DriverError> {
        use cublasLtMatmulDescAttributes_t as A;
        let mut raw = std::ptr::null_mut();
        let compute = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: `raw` outlives the call.
        let status =
            unsafe { (functions.desc_create)(&mut raw, compute, cudaDataType::CUDA_R_32F) };
        check("cublasLtMatmulDescCreate", status)?;
        let desc = Self { functions, raw };
        desc.set(A::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if has_bias {
            let epilogue = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            desc.set(A::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            let f32_type = cudaDataType::CUDA_R_32F as u32;
            desc.set(A::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &f32_type)?;
        }
        Ok(desc)
    }

    fn set<T: bytemuck::Pod>(
        &self,
        attribute: cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), DriverError> {
        let bytes = std::ptr::from_ref(value).cast();
        // SAFETY: the value has the attribute's size: 4 bytes, 8 for addresses.
        check("cublasLtMatmulDescSetAttribute", unsafe {
            (self.functions.desc_set)(self.raw, attribute, bytes, size_of::<T>())
        })
    }
}

struct Layout {
    functions: &'static Functions,
    raw: cublasLtMatrixLayout_t,
}

impl Layout {
    /// `columns` columns of `rows` elements each, one behind the other.
    fn new(
        functions: &'static Functions,
        of: cudaDataType,
        rows: u64,
        columns: u64,
    ) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call.
        let status = unsafe { (functions.layout_create)(&mut raw, of, rows, columns, rows as i64) };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Self { functions, raw })
    }
}

struct Preference {
    functions: &'static Functions,
    raw: cublasLtMatmulPreference_t,
}

impl Preference {
    fn new(
        functions: &'static Functions,
        workspace_bytes: usize,
        alignment: u32,
    ) -> Result<Self, DriverError> {
        use cublasLtMatmulPreferenceAttributes_t as A;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call.
        let status = unsafe { (functions.preference_create)(&mut raw) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let preference = Self { functions, raw };
        let workspace_bytes = workspace_bytes as u64;
        preference.set(
            A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            &workspace_bytes,
        )?;
        for operand in [
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(operand, &alignment)?;
        }
        Ok(preference)
    }

    fn set<T: bytemuck::Pod>(
        &self,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), DriverError> {
        let bytes = std::ptr::from_ref(value).cast();
        // SAFETY: the value has the attribute's size: 8 bytes for the workspace, 4 for alignments.
        check("cublasLtMatmulPreferenceSetAttribute", unsafe {
            (self.functions.preference_set)(self.raw, attribute, bytes, size_of::<T>())
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            // SAFETY: created once; nothing that it started runs any more.
            let _ = unsafe { (self.functions.destroy)(self.raw) };
        }
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created once, used no more: launches copy it.
        let _ = unsafe { (self.functions.desc_destroy)(self.raw) };
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: likewise.
        let _ = unsafe { (self.functions.layout_destroy)(self.raw) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: likewise.
        let _ = unsafe { (self.functions.preference_destroy)(self.raw) };
    }
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CublasLt({} plans)", self.plans.len())
    }
}

/// Opens the first library that has everything, and no other: each takes hundreds of megabytes.
fn open(driver: CudaVersion) -> Result<&'static Functions, String> {
    static FUNCTIONS: std::sync::OnceLock<Result<Functions, String>> = std::sync::OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        let mut reason = format!("{LIBRARY} was not found");
        for path in candidates(driver, &search::folders("cublas")) {
            // SAFETY: initialisers as in any CUDA program.
            let Ok(library) = (unsafe { libloading::Library::new(&path) }) else {
                continue;
            };
            // SAFETY: it has the name of the library that the bindings describe.
            match unsafe { Functions::resolve(&library) } {
                Ok(functions) => {
                    // Never closed: its functions are called until the process ends.
                    std::mem::forget(library);
                    tracing::info!(library = %path.display(), "cuBLASLt opened");
                    return Ok(functions);
                }
                Err(name) => reason = format!("{} has no {name}", path.display()),
            }
        }
        Err(reason)
    });
    functions.as_ref().map_err(String::clone)
}

/// Files that may be the library, best first: what the loader finds, then folder by folder. The version that the driver
/// is of comes before older ones, which it runs as well, and newer ones, which it may refuse, come last.
fn candidates(driver: CudaVersion, folders: &[PathBuf]) -> Vec<PathBuf> {
    let major = u32::try_from(driver.number() / 1000).unwrap_or(0);
    let by_loader = OLDEST_MAJOR..=major.max(NEWEST_MAJOR);
    let mut by_loader: Vec<_> = by_loader
        .map(|major| PathBuf::from(format!("{LIBRARY}.{major}")))
        .collect();
    by_loader.sort_by_key(|path| distance(major, path));
    let mut all = vec![PathBuf::from(LIBRARY)];
    all.extend(by_loader);
    for folder in folders {
        let mut found = search::entries(folder, LIBRARY);
        found.sort_by_key(|path| distance(major, path));
        all.extend(found);
    }
    all
}

/// How far a file is from what a driver of this major version runs best.
fn distance(driver_major: u32, path: &Path) -> u32 {
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

fn check(call: &'static str, status: c_int) -> Result<(), DriverError> {
    match status {
        0 => Ok(()),
        status => Err(DriverError::of_library(call, "cublasStatus", status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_driver_is_preferred_in_each_place() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder can be made"));
        let names = ["", ".11", ".12", ".12.9.1.4", ".13"];
        for name in names {
            let path = folders[0].path().join(format!("{LIBRARY}{name}"));
            std::fs::write(path, "").expect("it is writable");
        }
        std::fs::write(folders[1].path().join("libcublasLt.so.12"), "").expect("it is writable");
        let paths = folders.each_ref().map(|folder| folder.path().to_owned());
        let names_for = |driver: CudaVersion| -> Vec<String> {
            let all = candidates(driver, &paths).into_iter();
            let name = |path: PathBuf| {
                let name = path.file_name().expect("a file").to_string_lossy();
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
