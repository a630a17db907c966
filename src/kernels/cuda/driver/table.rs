//! Function table of the CUDA driver, looked up by name.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUjit_option, CUlaunchConfig, CUmodule, CUresult,
    CUstream, CUstreamCaptureMode,
};

use super::super::symbols::{library_functions, symbol};
use super::error::{CudaUnavailable, DriverError};

const LIBRARY: &str = "libcuda.so.1";
/// Part of the loader's error if there is no such file.
const ABSENT: &str = "cannot open shared object file";

type DescribeCode = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

library_functions! {
    Functions, sys -> CUresult;
    init: cuInit(c_uint);
    driver_version: cuDriverGetVersion(*mut c_int);
    device_count: cuDeviceGetCount(*mut c_int);
    device_get: cuDeviceGet(*mut CUdevice, c_int);
    device_name: cuDeviceGetName(*mut c_char, c_int, CUdevice);
    device_attribute: cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    device_total_mem: cuDeviceTotalMem_v2(*mut usize, CUdevice);
    primary_retain: cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    primary_release: cuDevicePrimaryCtxRelease_v2(CUdevice);
    ctx_set_current: cuCtxSetCurrent(CUcontext);
    ctx_synchronize: cuCtxSynchronize();
    ctx_priority_range: cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    mem_info: cuMemGetInfo_v2(*mut usize, *mut usize);
    mem_alloc: cuMemAlloc_v2(*mut CUdeviceptr, usize);
    mem_free: cuMemFree_v2(CUdeviceptr);
    host_alloc: cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    host_free: cuMemFreeHost(*mut c_void);
    host_register: cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    host_unregister: cuMemHostUnregister(*mut c_void);
    copy_to_device: cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    copy_to_host: cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    copy_on_device: cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    fill_bytes: cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    stream_create: cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
    stream_destroy: cuStreamDestroy_v2(CUstream);
    stream_synchronize: cuStreamSynchronize(CUstream);
    stream_wait: cuStreamWaitEvent(CUstream, CUevent, c_uint);
    stream_begin_capture: cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
    stream_end_capture: cuStreamEndCapture(CUstream, *mut CUgraph);
    event_create: cuEventCreate(*mut CUevent, c_uint);
    event_destroy: cuEventDestroy_v2(CUevent);
    event_record: cuEventRecord(CUevent, CUstream);
    event_query: cuEventQuery(CUevent);
    event_synchronize: cuEventSynchronize(CUevent);
    // Not `_v2`, which drivers before 12.8 lack; the arguments are the same.
    event_elapsed: cuEventElapsedTime like cuEventElapsedTime_v2 (*mut f32, CUevent, CUevent);
    module_load: cuModuleLoadDataEx(
        *mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void
    );
    module_unload: cuModuleUnload(CUmodule);
    module_function: cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    function_attribute: cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
    function_set_attribute: cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
    launch_kernel: cuLaunchKernelEx(
        *const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void
    );
    graph_instantiate: cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    graph_upload: cuGraphUpload(CUgraphExec, CUstream);
    graph_launch: cuGraphLaunch(CUgraphExec, CUstream);
    graph_destroy: cuGraphDestroy(CUgraph);
    graph_exec_destroy: cuGraphExecDestroy(CUgraphExec);
}

/// The function table, and functions that accept error codes which the bindings do not know.
struct Driver {
    functions: Functions,
    error_name: DescribeCode,
    error_string: DescribeCode,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Functions {
    pub(super) fn open() -> Result<&'static Self, CudaUnavailable> {
        if let Some(driver) = DRIVER.get() {
            return Ok(&driver.functions);
        }
        // The bindings panic without a library. SAFETY: this runs the library's initialisers, as any CUDA program does.
        if !unsafe { sys::is_culib_present() } {
            return Err(unavailable());
        }
        // SAFETY: the library was just found, and is never closed.
        let library = unsafe { sys::culib() };
        // SAFETY: the library is the driver's; the last two functions are declared as in cuda.h, with an int for the
        // enum of codes.
        let driver = unsafe {
            Functions::resolve(library).and_then(|functions| {
                Ok(Driver {
                    functions,
                    error_name: symbol(library, "cuGetErrorName\0")?,
                    error_string: symbol(library, "cuGetErrorString\0")?,
                })
            })
        };
        let driver = driver.map_err(CudaUnavailable::MissingFunction)?;
        Ok(&DRIVER.get_or_init(|| driver).functions)
    }

    pub(super) fn describe(code: c_int) -> (&'static str, &'static str) {
        let Some(driver) = DRIVER.get() else {
            return ("CUDA error", "");
        };
        let text = |describe: DescribeCode| {
            let mut text = std::ptr::null();
            // SAFETY: `text` outlives the call.
            let found = unsafe { describe(code, &mut text) } == 0 && !text.is_null();
            // SAFETY: the text is in the driver's read-only data, and the library is never unloaded.
            let text = found.then(|| unsafe { CStr::from_ptr::<'static>(text) });
            text.and_then(|text| text.to_str().ok())
        };
        (
            text(driver.error_name).unwrap_or("unknown CUDA error"),
            text(driver.error_string).unwrap_or_default(),
        )
    }
}

/// Distinguishes a driver that is absent from one that cannot be loaded.
fn unavailable() -> CudaUnavailable {
    // SAFETY: this runs the library's initialisers, as any CUDA program does.
    let Err(error) = (unsafe { libloading::Library::new(LIBRARY) }) else {
        return CudaUnavailable::NoDriver;
    };
    let reason = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    if reason.contains(ABSENT) {
        CudaUnavailable::NoDriver
    } else {
        CudaUnavailable::Unloadable(reason)
    }
}

pub(super) fn check(call: &'static str, code: c_int) -> Result<(), DriverError> {
    match code {
        0 => Ok(()),
        code => Err(DriverError::new(call, code)),
    }
}
