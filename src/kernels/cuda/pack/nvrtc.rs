//! Compiles kernels with NVRTC, from a CUDA toolkit or a Python package.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};
use libloading::Library;

use super::super::search;
use super::super::symbols::library_functions;
use super::sources::{ALL_HEADERS, ALL_UNITS, options};

const LIBRARY: &str = "libnvrtc.so";
const BUILTINS: &str = "libnvrtc-builtins.so";
/// Older versions don't support sm_89 or sm_90.
const OLDEST_MAJOR: c_int = 12;

library_functions! {
    Functions, sys -> nvrtcResult;
    version: nvrtcVersion(*mut c_int, *mut c_int);
    create: nvrtcCreateProgram(
        *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char
    );
    compile: nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
    log_size: nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
    log: nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
    cubin_size: nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
    cubin: nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
    destroy: nvrtcDestroyProgram(*mut nvrtcProgram);
}

pub struct Nvrtc {
    functions: Functions,
    version: String,
}

impl Nvrtc {
    /// Opens the first NVRTC library found in these folders or by the loader.
    ///
    /// # Errors
    /// If none is found; the error names the folders searched.
    pub fn find(folders: &[PathBuf]) -> Result<Self, String> {
        let mut tried = Vec::new();
        for folder in folders {
            match library_in(folder) {
                Some(library) => match Self::open(&library) {
                    Ok(nvrtc) => return Ok(nvrtc),
                    Err(reason) => tried.push(format!("{}: {reason}", library.display())),
                },
                None => tried.push(format!("no {LIBRARY} in {}", folder.display())),
            }
        }
        for major in ["13", "12"] {
            if let Ok(nvrtc) = Self::open(Path::new(&format!("{LIBRARY}.{major}"))) {
                return Ok(nvrtc);
            }
        }
        tried.push(format!("no {LIBRARY} on the loader's path"));
        Err(tried.join(", "))
    }

    /// Such as `12.9`.
    pub fn version(&self) -> &str {
        &self.version
    }

    fn open(library: &Path) -> Result<Self, String> {
        // NVRTC opens its builtins library by name. The loader does not search the folders of Python packages, but
        // finds libraries that are already open.
        for builtins in library
            .parent()
            .into_iter()
            .flat_map(|folder| search::entries(folder, BUILTINS))
        {
            // SAFETY: the builtins are data; both libraries' initialisers are harmless, as in any CUDA program.
            if let Ok(builtins) = unsafe { Library::new(builtins) } {
                std::mem::forget(builtins);
            }
        }
        // SAFETY: likewise.
        let library = unsafe { Library::new(library) }.map_err(|error| error.to_string())?;
        // Never closed: NVRTC may have threads and state.
        let library = Box::leak(Box::new(library));
        // SAFETY: by its name and the names of its functions, the library is NVRTC.
        let functions = unsafe { Functions::resolve(library) };
        let functions = functions.map_err(|name| format!("lacks the function {name}"))?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both outlive the call.
        check("nvrtcVersion", unsafe {
            (functions.version)(&mut major, &mut minor)
        })?;
        if major < OLDEST_MAJOR {
            return Err(format!("CUDA {major}.{minor} is too old: 12 is needed"));
        }
        Ok(Self {
            functions,
            version: format!("{major}.{minor}"),
        })
    }

    /// Compiles a unit to machine code.
    ///
    /// # Errors
    /// The compiler's log.
    pub fn compile(&self, unit: &str, target: &str) -> Result<Vec<u8>, String> {
        let text = ALL_UNITS.iter().find(|(name, _)| *name == unit);
        let (_, text) = text.ok_or_else(|| format!("unknown kernel file {unit}"))?;
        let name = c_string(unit)?;
        let source = c_string(text)?;
        let strings = |pairs: &[(&str, &str)], of: fn(&(&str, &str)) -> String| {
            pairs
                .iter()
                .map(|pair| c_string(&of(pair)))
                .collect::<Result<Vec<_>, _>>()
        };
        let headers = strings(ALL_HEADERS, |(_, text)| (*text).to_owned())?;
        let names = strings(ALL_HEADERS, |(name, _)| (*name).to_owned())?;
        let (headers, names) = (pointers(&headers), pointers(&names));
        let mut program = Program {
            functions: &self.functions,
            raw: std::ptr::null_mut(),
        };
        // SAFETY: all strings end in NUL and outlive the call, which copies them.
        check("nvrtcCreateProgram", unsafe {
            (self.functions.create)(
                &mut program.raw,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                headers.as_ptr(),
                names.as_ptr(),
            )
        })?;
        program.compile(&options(target))?;
        program.cubin()
    }
}

struct Program<'a> {
    functions: &'a Functions,
    raw: nvrtcProgram,
}

impl Program<'_> {
    fn compile(&self, options: &[String]) -> Result<(), String> {
        let options = options.iter().map(|option| c_string(option));
        let options = options.collect::<Result<Vec<_>, _>>()?;
        let options = pointers(&options);
        // SAFETY: the program was created, the options end in NUL and outlive the call.
        let code =
            unsafe { (self.functions.compile)(self.raw, options.len() as c_int, options.as_ptr()) };
        check("nvrtcCompileProgram", code).map_err(|error| {
            let log = self.text(self.functions.log_size, self.functions.log);
            let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
            format!("{error}: {}", log.trim_end_matches('\0').trim())
        })
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let cubin = self.text(self.functions.cubin_size, self.functions.cubin)?;
        if cubin.is_empty() {
            Err("NVRTC returned no machine code".to_owned())
        } else {
            Ok(cubin)
        }
    }

    fn text(
        &self,
        size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int,
        get: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program was compiled, `len` outlives the call.
        check("reading the size of NVRTC's output", unsafe {
            size(self.raw, &mut len)
        })?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: the call writes as many bytes as the library just reported.
        check("reading NVRTC's output", unsafe {
            get(self.raw, bytes.as_mut_ptr().cast())
        })?;
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { (self.functions.destroy)(&mut self.raw) };
        }
    }
}

fn check(call: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("{call} failed with {code}")),
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a source contains a NUL byte".to_owned())
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

/// `SOUFFLEUR_NVRTC_DIR`, else toolkits and the active Python environment.
pub fn folders_of_user() -> Vec<PathBuf> {
    match search::variable("SOUFFLEUR_NVRTC_DIR") {
        Some(chosen) => vec![chosen],
        None => search::folders("cuda_nvrtc"),
    }
}

fn library_in(folder: &Path) -> Option<PathBuf> {
    // The highest version; `libnvrtc.so` itself is a link to one.
    let libraries = search::entries(folder, LIBRARY);
    libraries.into_iter().rfind(|path| path.is_file())
}
