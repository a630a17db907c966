//! CUDA modules and kernels: loading, lookup by name, launch with arguments.

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmodule,
};

use super::device::{CudaVersion, Device};
use super::error::DriverError;
use super::memory::DevicePtr;
use super::stream::Stream;
use super::table::check;

const JIT_LOG_BYTES: usize = 8 << 10;
/// The first virtual architecture whose kernels wait for earlier launches (`after_earlier_launches` of `ptx.cuh`).
const WAITING_PTX_VERSION: u32 = 90;

/// Loaded machine code of kernels, unloaded when the last clone and the last [`Kernel`] are dropped.
#[derive(Clone)]
pub struct Module(Arc<LoadedModule>);

struct LoadedModule {
    device: Device,
    raw: CUmodule,
}

// SAFETY: a module belongs to a context, not to a thread.
unsafe impl Send for LoadedModule {}
// SAFETY: looking up functions and attributes is locked by the driver.
unsafe impl Sync for LoadedModule {}

#[derive(Clone)]
pub struct Kernel {
    module: Arc<LoadedModule>,
    raw: CUfunction,
    name: Arc<str>,
    /// Whether the kernel waits for earlier launches itself, so that it may start early.
    waits: bool,
}

// SAFETY: a function belongs to a module, not to a thread.
unsafe impl Send for Kernel {}
// SAFETY: the driver locks a function in every call.
unsafe impl Sync for Kernel {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// In x, y and z.
    pub blocks: [u32; 3],
    /// In x, y and z.
    pub threads: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl Grid {
    pub fn new(blocks: [u32; 3], threads: u32) -> Self {
        Self {
            blocks,
            threads: [threads, 1, 1],
            shared_bytes: 0,
        }
    }

    #[must_use]
    pub fn shared(self, shared_bytes: u32) -> Self {
        Self {
            shared_bytes,
            ..self
        }
    }

    fn is_legal(&self) -> bool {
        let threads: u64 = self.threads.iter().map(|n| u64::from(*n)).product();
        let [x, y, z] = self.blocks;
        (1..=1024).contains(&threads)
            && (1..=i32::MAX as u32).contains(&x)
            && [y, z].iter().all(|n| (1..=65535).contains(n))
    }
}

/// # Safety
/// Size and layout are those of the kernel's parameter: a number, a [`DevicePtr`] or a `repr(C)` struct of these.
pub unsafe trait KernelArg: Copy {}

// SAFETY: numbers have the same size and layout on host and device.
unsafe impl KernelArg for u32 {}
// SAFETY: likewise.
unsafe impl KernelArg for i32 {}
// SAFETY: likewise.
unsafe impl KernelArg for u64 {}
// SAFETY: likewise.
unsafe impl KernelArg for f32 {}
// SAFETY: `repr(transparent)` over a pointer's 64 bits.
unsafe impl<T> KernelArg for DevicePtr<T> {}

/// The arguments of a launch: a tuple of [`KernelArg`]s, in order.
pub trait KernelArgs {
    fn with_pointers<R>(&self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
}

macro_rules! kernel_args {
    ($($argument:ident),*) => {
        impl<$($argument: KernelArg),*> KernelArgs for ($($argument,)*) {
            fn with_pointers<R>(&self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
                #[allow(non_snake_case)]
                let ($($argument,)*) = self;
                launch(&mut [$(std::ptr::from_ref($argument).cast_mut().cast::<c_void>()),*])
            }
        }
    };
}

kernel_args!(A);
kernel_args!(A, B);
kernel_args!(A, B, C);
kernel_args!(A, B, C, D);
kernel_args!(A, B, C, D, E);
kernel_args!(A, B, C, D, E, F);
kernel_args!(A, B, C, D, E, F, G);
kernel_args!(A, B, C, D, E, F, G, H);
kernel_args!(A, B, C, D, E, F, G, H, I);
kernel_args!(A, B, C, D, E, F, G, H, I, J);

impl Device {
    /// Loads machine code (a cubin), or PTX that the driver translates; PTX is text and ends in NUL.
    ///
    /// # Safety
    /// The image is a whole cubin, or PTX: the driver finds its end from the image itself.
    ///
    /// # Errors
    /// The driver's error; for PTX with the compilation log.
    pub unsafe fn load_module(&self, image: &[u8]) -> Result<Module, DriverError> {
        self.bind()?;
        let mut raw = std::ptr::null_mut();
        let mut log = vec![0_u8; JIT_LOG_BYTES];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // Option values that are numbers are passed as pointers.
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            std::ptr::without_provenance_mut(JIT_LOG_BYTES),
        ];
        // SAFETY: the caller guarantees the image; two options with two values, and a log of the length given.
        let code = unsafe {
            (self.functions().module_load)(
                &mut raw,
                image.as_ptr().cast::<c_void>(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        check("cuModuleLoadDataEx", code).map_err(|error| {
            let end = log.iter().position(|byte| *byte == 0);
            let log = String::from_utf8_lossy(&log[..end.unwrap_or(JIT_LOG_BYTES)]);
            error.with_text(log.trim())
        })?;
        Ok(Module(Arc::new(LoadedModule {
            device: self.clone(),
            raw,
        })))
    }
}

impl Module {
    /// # Errors
    /// If the module has no kernel of this name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, DriverError> {
        let module = &self.0;
        module.device.bind()?;
        let missing = |error: DriverError| error.with_text(&format!("kernel {name}"));
        let c_name = CString::new(name)
            .map_err(|_| missing(DriverError::invalid("cuModuleGetFunction", String::new())))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded while `self` lives, both pointers outlive the call.
        let code = unsafe {
            (module.device.functions().module_function)(&mut raw, module.raw, c_name.as_ptr())
        };
        check("cuModuleGetFunction", code).map_err(missing)?;
        let mut kernel = Kernel {
            module: module.clone(),
            raw,
            name: name.into(),
            waits: false,
        };
        let version = kernel.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)?;
        kernel.waits = version >= WAITING_PTX_VERSION
            && module.device.info().driver >= CudaVersion::RECORDS_EARLY_LAUNCHES;
        Ok(kernel)
    }
}

impl Kernel {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Raises the limit of dynamic shared memory. Must be called before any launch of a kernel that uses some:
    /// otherwise static and dynamic bytes are limited to 48 KiB together.
    ///
    /// # Errors
    /// If the GPU has less shared memory.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let device = &self.module.device;
        device.bind()?;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function lives as long as its module, which is held here.
        let code =
            unsafe { (device.functions().function_set_attribute)(self.raw, attribute, value) };
        check("cuFuncSetAttribute", code).map_err(|error| {
            let text = format!(
                "{} ({}, {bytes} bytes of shared memory)",
                error.text, self.name
            );
            error.with_text(&text)
        })
    }

    pub fn static_shared_bytes(&self) -> Result<u32, DriverError> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    pub fn registers(&self) -> Result<u32, DriverError> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32, DriverError> {
        let device = &self.module.device;
        device.bind()?;
        let mut value = 0;
        // SAFETY: the function lives as long as its module, which is held here; `value` outlives the call.
        let code =
            unsafe { (device.functions().function_attribute)(&mut value, attribute, self.raw) };
        check("cuFuncGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
    }

    /// Enqueues the kernel. Allocates nothing; the driver copies the arguments.
    ///
    /// # Safety
    /// The arguments are those that the kernel takes, in type, number and order; the memory it accesses through them is
    /// memory of this device that lives until `stream` has passed this point; other streams use it only in order.
    ///
    /// # Errors
    /// The driver's error: nothing ran. A later call reports a fault of the kernel.
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: &A,
    ) -> Result<(), DriverError> {
        assert!(
            grid.is_legal(),
            "the grid of {} is not valid: {grid:?}",
            self.name
        );
        let device = &self.module.device;
        device.bind()?;
        let ([bx, by, bz], [tx, ty, tz]) = (grid.blocks, grid.threads);
        let mut begins_early = begins_early();
        let config = CUlaunchConfig {
            gridDimX: bx,
            gridDimY: by,
            gridDimZ: bz,
            blockDimX: tx,
            blockDimY: ty,
            blockDimZ: tz,
            sharedMemBytes: grid.shared_bytes,
            hStream: stream.raw(),
            attrs: &raw mut begins_early,
            numAttrs: u32::from(self.waits),
        };
        let launch = device.functions().launch_kernel;
        // SAFETY: the function lives as long as its module, which is held here; the attribute outlives the call; the
        // rest by the caller.
        let code = arguments.with_pointers(|arguments| unsafe {
            launch(
                &config,
                self.raw,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        });
        check("cuLaunchKernelEx", code).map_err(|error| {
            let text = format!("{} ({}, {grid:?})", error.text, self.name);
            error.with_text(&text)
        })
    }
}

/// Allows programmatic dependent launch: a kernel may begin once all blocks of the previous launch have waited for
/// their predecessors.
fn begins_early() -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue {
            programmaticStreamSerializationAllowed: 1,
        },
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        let unload = self.device.functions().module_unload;
        // SAFETY: loaded in `load_module`, unloaded once, and none of its kernels runs any more.
        let _ = self.device.when_idle(|| unsafe { unload(self.raw) });
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:p})", self.0.raw)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}
