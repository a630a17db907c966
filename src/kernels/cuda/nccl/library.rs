//! Loads NCCL at run time: library file, functions, version.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nccl::sys::{
    self, cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use libloading::Library;

use super::error::{NcclError, NcclUnavailable, NcclVersion};
use crate::cuda::search;
use crate::cuda::symbols::{library_functions, symbol};

const LIBRARY: &str = "libnccl.so";
/// The names of the library without and with the major version, which has been 2 since 2017.
const BY_LOADER: [&str; 2] = ["libnccl.so.2", LIBRARY];
const SUCCESS: c_int = 0;

library_functions! {
    Functions, sys -> ncclResult_t;
    version: ncclGetVersion(*mut c_int);
    unique_id: ncclGetUniqueId(*mut ncclUniqueId);
    init_rank: ncclCommInitRank(*mut ncclComm_t, c_int, ncclUniqueId, c_int);
    destroy: ncclCommDestroy(ncclComm_t);
    abort: ncclCommAbort(ncclComm_t);
    async_error: ncclCommGetAsyncError(ncclComm_t, *mut ncclResult_t);
    all_reduce: ncclAllReduce(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
    );
    all_gather: ncclAllGather(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t
    );
    broadcast: ncclBroadcast(
        *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
    );
}

/// The library's functions, never unloaded.
pub(super) struct Nccl {
    pub(super) functions: Functions,
    version: NcclVersion,
    /// Both take ints or nothing for the bindings' enums, and return texts of the library.
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(ncclComm_t) -> *const c_char,
}

/// Opens NCCL, unless this was done before, and returns its version.
///
/// # Errors
/// The reason why it cannot be used.
pub fn installed() -> Result<NcclVersion, NcclUnavailable> {
    open().map(|nccl| nccl.version)
}

pub(super) fn open() -> Result<&'static Nccl, NcclUnavailable> {
    static NCCL: OnceLock<Result<Nccl, NcclUnavailable>> = OnceLock::new();
    let opened = NCCL.get_or_init(|| first_of(&candidates(&search::folders("nccl"))));
    opened.as_ref().map_err(Clone::clone)
}

/// Candidate library files, best first: by the loader's search path, then by folder.
fn candidates(folders: &[PathBuf]) -> Vec<PathBuf> {
    let in_folders = folders
        .iter()
        .flat_map(|folder| search::entries(folder, LIBRARY));
    BY_LOADER
        .into_iter()
        .map(PathBuf::from)
        .chain(in_folders)
        .collect()
}

/// Opens the first library that can be used; the error is that of the last that was opened.
fn first_of(candidates: &[PathBuf]) -> Result<Nccl, NcclUnavailable> {
    let mut reason = NcclUnavailable::NotFound;
    for path in candidates {
        // SAFETY: this runs the library's initialisers, as any program with NCCL does.
        let Ok(library) = (unsafe { Library::new(path) }) else {
            continue;
        };
        match Nccl::new(&library, path) {
            Ok(nccl) => {
                // Never closed: its functions are called until the process ends.
                std::mem::forget(library);
                tracing::info!(library = %path.display(), version = %nccl.version, "NCCL loaded");
                return Ok(nccl);
            }
            Err(refused) => reason = refused,
        }
    }
    Err(reason)
}

impl Nccl {
    fn new(library: &Library, path: &Path) -> Result<Self, NcclUnavailable> {
        let name = || path.display().to_string();
        // SAFETY: by its name, this is the library that the bindings describe. The last two functions are declared as
        // in nccl.h, with an int for the enum of codes.
        let found = unsafe {
            Functions::resolve(library).and_then(|functions| {
                let error_text = symbol(library, "ncclGetErrorString\0")?;
                let last_error = symbol(library, "ncclGetLastError\0")?;
                Ok((functions, error_text, last_error))
            })
        };
        let (functions, error_text, last_error) =
            found.map_err(|function| NcclUnavailable::MissingFunction {
                library: name(),
                function,
            })?;
        let mut number = 0;
        // SAFETY: `number` outlives the call.
        let status = unsafe { (functions.version)(&mut number) };
        if status != SUCCESS {
            let library = name();
            return Err(NcclUnavailable::Version { library, status });
        }
        let found = NcclVersion::new(number);
        if found < NcclVersion::NEEDED {
            let library = name();
            return Err(NcclUnavailable::TooOld { library, found });
        }
        Ok(Self {
            functions,
            version: found,
            error_text,
            last_error,
        })
    }

    /// The error of a call by a rank, with NCCL's description of the code and of the last failure. `raw` is the
    /// communicator, or null.
    pub(super) fn check(
        &self,
        (call, rank): (&'static str, usize),
        code: c_int,
        raw: ncclComm_t,
    ) -> Result<(), NcclError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any code.
        let mut text = text_at(unsafe { (self.error_text)(code) });
        // SAFETY: the caller's communicator is not freed meanwhile; the function needs none.
        let last = text_at(unsafe { (self.last_error)(raw) });
        if !last.is_empty() {
            text = format!("{text}: {last}");
        }
        Err(NcclError::Failed {
            call,
            rank,
            code,
            text,
        })
    }
}

fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end in NUL, and are never freed.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Compiles a library with these functions.
    fn library(folder: &Path, functions: &str) -> PathBuf {
        let (source, library) = (folder.join("nccl.cpp"), folder.join("libnccl.so.2"));
        fs::write(&source, functions).expect("the folder can be written");
        let mut compiler = souffleur_cusim::compiler(folder);
        compiler.args(["-shared", "-fPIC", "-o"]);
        let status = compiler.arg(&library).arg(&source).status();
        assert!(status.expect("the compiler runs").success());
        library
    }

    fn refusal(candidates: &[PathBuf]) -> NcclUnavailable {
        let refused = first_of(candidates).map(|nccl| nccl.version);
        refused.expect_err("this library must be refused")
    }

    #[test]
    fn a_missing_library_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let refused = refusal(&[folder.path().join("libnccl.so.2")]);
        assert_eq!(refused, NcclUnavailable::NotFound);
        let text = refused.to_string();
        assert!(text.contains("libnccl.so.2") && text.contains("LD_LIBRARY_PATH"));
    }

    #[test]
    fn a_missing_function_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let version = "extern \"C\" int ncclGetVersion(int* version) { return *version = 0; }";
        let library = library(folder.path(), version);
        let refused = refusal(std::slice::from_ref(&library));
        let expected = NcclUnavailable::MissingFunction {
            library: library.display().to_string(),
            function: "ncclGetUniqueId",
        };
        assert_eq!(refused, expected);
        assert!(refused.to_string().contains("ncclGetUniqueId"), "{refused}");
    }

    #[test]
    fn libraries_are_searched_by_the_loader_and_then_in_folders() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        for name in ["libnccl.so.2", "libnccl-net.so"] {
            fs::write(folder.path().join(name), "").expect("the folder can be written");
        }
        let found = candidates(&[folder.path().to_owned()]);
        let expected = ["libnccl.so.2", "libnccl.so"].map(PathBuf::from);
        assert_eq!(found[..2], expected);
        assert_eq!(found[2..], [folder.path().join("libnccl.so.2")]);
    }

    #[test]
    fn versions_are_shown_as_nccl_does() {
        assert_eq!(NcclVersion::new(22_203).to_string(), "2.22.3");
        assert_eq!(NcclVersion::NEEDED.to_string(), "2.16.0");
    }
}
