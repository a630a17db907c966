//! GPUs: detection, and the context of one device.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};

use super::claim::{Claim, Holding};
use super::error::{CudaUnavailable, DriverError};
use super::graph::{ContextLock, context_lock, lock_out_captures};
use super::table::{Functions, check};

/// Minimum compute capability: kernels use mma.sync on bf16 and cp.async.
const NEEDED_CAPABILITY: (u32, u32) = (8, 0);
/// Size of a test allocation, which detects a GPU without free memory before weights are loaded.
const FIRST_ALLOCATION_BYTES: usize = 1 << 20;
const NAME_BYTES: usize = 128;

/// In the driver's notation: 1000 * major + 10 * minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(c_int);

impl CudaVersion {
    pub const NEEDED: Self = Self(12_000);
    /// The first version whose graphs keep programmatic dependent launches.
    pub const RECORDS_EARLY_LAUNCHES: Self = Self(12_030);

    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Index among the GPUs visible to this process.
    pub ordinal: usize,
    /// Such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Major and minor.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    pub shared_bytes_per_block: u32,
    pub total_bytes: u64,
    pub driver: CudaVersion,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GPU {}: {}, sm_{}{}, {} multiprocessors, {:.1} GiB, driver supports CUDA {}",
            self.ordinal,
            self.name,
            self.capability.0,
            self.capability.1,
            self.multiprocessors,
            self.total_bytes as f64 / (1_u64 << 30) as f64,
            self.driver,
        )
    }
}

/// Memory of a GPU, which all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// The CUDA version of the driver; `None` without a driver. Does not query GPUs, which is slow.
pub fn installed() -> Option<CudaVersion> {
    let functions = Functions::open().ok()?;
    version(functions).ok()
}

/// The number of GPUs that the driver shows to this process, at least one.
///
/// # Errors
/// The reason why there is no GPU.
pub fn count() -> Result<usize, CudaUnavailable> {
    init(Functions::open()?).map(|(_, n_devices)| n_devices)
}

/// Describes a GPU without creating a context, which would allocate memory.
///
/// # Errors
/// The reason why the GPU cannot be used.
pub fn probe(ordinal: usize) -> Result<DeviceInfo, CudaUnavailable> {
    let functions = Functions::open()?;
    find(functions, ordinal).map(|(info, _)| info)
}

fn version(functions: &Functions) -> Result<CudaVersion, DriverError> {
    let mut version = 0;
    // SAFETY: allowed before cuInit; `version` outlives the call.
    let code = unsafe { (functions.driver_version)(&mut version) };
    check("cuDriverGetVersion", code).map(|()| CudaVersion(version))
}

/// Initialises the driver. Returns its version and the number of GPUs.
fn init(functions: &Functions) -> Result<(CudaVersion, usize), CudaUnavailable> {
    let driver = version(functions).map_err(CudaUnavailable::init)?;
    if driver < CudaVersion::NEEDED {
        return Err(CudaUnavailable::TooOld { found: driver });
    }
    // SAFETY: takes no flags; may be called again.
    check("cuInit", unsafe { (functions.init)(0) }).map_err(CudaUnavailable::init)?;
    let mut n_devices = 0;
    // SAFETY: `n_devices` outlives the call.
    let code = unsafe { (functions.device_count)(&mut n_devices) };
    check("cuDeviceGetCount", code).map_err(CudaUnavailable::init)?;
    let n_devices = usize::try_from(n_devices).unwrap_or(0);
    if n_devices == 0 {
        return Err(CudaUnavailable::NoDevice);
    }
    Ok((driver, n_devices))
}

fn find(functions: &Functions, ordinal: usize) -> Result<(DeviceInfo, CUdevice), CudaUnavailable> {
    let (driver, n_devices) = init(functions)?;
    if ordinal >= n_devices {
        return Err(CudaUnavailable::NoSuchDevice { ordinal, n_devices });
    }
    let (info, device) = describe(functions, ordinal, driver)
        .map_err(|error| CudaUnavailable::Query { ordinal, error })?;
    if info.capability < NEEDED_CAPABILITY {
        return Err(CudaUnavailable::TooOldDevice {
            ordinal,
            name: info.name,
            capability: info.capability,
        });
    }
    Ok((info, device))
}

fn describe(
    functions: &Functions,
    ordinal: usize,
    driver: CudaVersion,
) -> Result<(DeviceInfo, CUdevice), DriverError> {
    let mut device = 0;
    // SAFETY: `device` outlives the call.
    let code = unsafe { (functions.device_get)(&mut device, ordinal as c_int) };
    check("cuDeviceGet", code)?;
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: the driver writes at most the length given, NUL included.
    let code = unsafe {
        (functions.device_name)(
            name.as_mut_ptr().cast::<c_char>(),
            NAME_BYTES as c_int,
            device,
        )
    };
    check("cuDeviceGetName", code)?;
    let end = name.iter().position(|byte| *byte == 0);
    let mut total_bytes = 0;
    // SAFETY: `device` came from the driver, `total_bytes` outlives the call.
    let code = unsafe { (functions.device_total_mem)(&mut total_bytes, device) };
    check("cuDeviceTotalMem", code)?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: likewise.
        let code = unsafe { (functions.device_attribute)(&mut value, attribute, device) };
        check("cuDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
    };
    use CUdevice_attribute as A;
    let info = DeviceInfo {
        ordinal,
        name: String::from_utf8_lossy(&name[..end.unwrap_or(NAME_BYTES)]).into_owned(),
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_per_block: attribute(
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        total_bytes: total_bytes as u64,
        driver,
    };
    Ok((info, device))
}

/// A GPU and its context. Clones share them; the context lives as long as anything made from it.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

struct Shared {
    /// Never reused, unlike the handle of the context.
    id: u64,
    functions: &'static Functions,
    info: DeviceInfo,
    device: CUdevice,
    context: CUcontext,
    context_lock: Arc<ContextLock>,
    /// Range of stream priorities: the least urgent, the most urgent; lower numbers are more urgent.
    priorities: (c_int, c_int),
    allocated_bytes: AtomicU64,
    pinned_bytes: AtomicU64,
    /// `None` if no engine has opened the device.
    holding: Option<Holding>,
}

// SAFETY: the driver may be called from all threads at once with one context; the handle is never changed.
unsafe impl Send for Shared {}
// SAFETY: likewise; the counters are atomic.
unsafe impl Sync for Shared {}

thread_local! {
    /// The `id` of the [`Shared`] whose context is current on this thread, or 0.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

static N_OPENED: AtomicU64 = AtomicU64::new(0);

impl Device {
    /// Opens a GPU and makes a small test allocation.
    ///
    /// # Errors
    /// Why the GPU cannot be used.
    pub fn open(ordinal: usize) -> Result<Self, CudaUnavailable> {
        Self::open_for(ordinal, None)
    }

    fn open_for(ordinal: usize, holding: Option<Holding>) -> Result<Self, CudaUnavailable> {
        let functions = Functions::open()?;
        let (info, device) = find(functions, ordinal)?;
        let no_context = |error| CudaUnavailable::context(ordinal, error);
        let mut context = std::ptr::null_mut();
        // SAFETY: `device` came from the driver; the context is released in drop.
        let code = unsafe { (functions.primary_retain)(&mut context, device) };
        check("cuDevicePrimaryCtxRetain", code).map_err(no_context)?;
        let mut shared = Shared {
            id: N_OPENED.fetch_add(1, Ordering::Relaxed) + 1,
            functions,
            info,
            device,
            context,
            context_lock: context_lock(ordinal),
            priorities: (0, 0),
            allocated_bytes: AtomicU64::new(0),
            pinned_bytes: AtomicU64::new(0),
            holding,
        };
        shared.bind().map_err(no_context)?;
        let (least, most) = (&mut 0, &mut 0);
        // SAFETY: both outlive the call, the context is current.
        let code = unsafe { (functions.ctx_priority_range)(least, most) };
        check("cuCtxGetStreamPriorityRange", code).map_err(no_context)?;
        shared.priorities = (*least, *most);
        let device = Self(Arc::new(shared));
        match device.alloc::<u8>(FIRST_ALLOCATION_BYTES) {
            Ok(_) => Ok(device),
            Err(error) => {
                let bytes = FIRST_ALLOCATION_BYTES;
                Err(CudaUnavailable::first_allocation(ordinal, bytes, error))
            }
        }
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Takes note that the context is lost, for all executors of the process that have it open, if there are several.
    pub fn lose(&self, error: &DriverError) {
        if let Some(holding) = &self.0.holding {
            holding.lose(&error.to_string());
        }
    }

    /// The error by which the context was lost, if another executor had it open too.
    pub fn loss(&self) -> Option<&str> {
        self.0.holding.as_ref().and_then(Holding::loss)
    }

    pub fn memory(&self) -> Result<DeviceMemory, DriverError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call, the context is current.
        let code = unsafe { (self.functions().mem_info)(&mut free, &mut total) };
        check("cuMemGetInfo", code)?;
        Ok(DeviceMemory {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }

    /// Waits until all work on the GPU is done.
    ///
    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.when_idle(|| ())
    }

    /// Synchronizes, and calls `then` before any thread can begin to capture a graph: freeing memory, code or a
    /// library's handle may synchronize the context again.
    ///
    /// # Errors
    /// As [`Self::synchronize`]; `then` was not called.
    pub(in super::super) fn when_idle<R>(
        &self,
        then: impl FnOnce() -> R,
    ) -> Result<R, DriverError> {
        const CALL: &str = "cuCtxSynchronize";
        self.bind()?;
        let _guard = lock_out_captures(self.context_lock(), CALL)?;
        // SAFETY: the context is current.
        check(CALL, unsafe { (self.functions().ctx_synchronize)() })?;
        Ok(then())
    }

    pub fn allocated_bytes(&self) -> u64 {
        self.0.allocated_bytes.load(Ordering::Relaxed)
    }

    pub fn pinned_bytes(&self) -> u64 {
        self.0.pinned_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.0.functions
    }

    pub(super) fn context_lock(&self) -> &ContextLock {
        &self.0.context_lock
    }

    pub(super) fn priorities(&self) -> (c_int, c_int) {
        self.0.priorities
    }

    pub(super) fn allocated_counter(&self) -> &AtomicU64 {
        &self.0.allocated_bytes
    }

    pub(super) fn pinned_counter(&self) -> &AtomicU64 {
        &self.0.pinned_bytes
    }

    pub(in super::super) fn bind(&self) -> Result<(), DriverError> {
        self.0.bind()
    }
}

impl Claim {
    /// Opens the GPU as [`Device::open`] does. After the loss of a context that other executors of the engine have
    /// open, it waits until they have released it.
    ///
    /// # Errors
    /// As [`Device::open`]; [`CudaUnavailable::SharedContextLost`] after [`Device::lose`] while other engines had the
    /// GPU open, for ever; [`CudaUnavailable::NotReleased`] if the wait is too long.
    pub fn open(&self) -> Result<Device, CudaUnavailable> {
        match self.open_once() {
            // An executor that has the context open may not have noticed the loss.
            Err(CudaUnavailable::Lost { error, .. }) if self.tell(&error) => self.open_once(),
            opened => opened,
        }
    }

    /// Tells the executors that have the GPU open that its context is lost. False if there are none.
    fn tell(&self, error: &DriverError) -> bool {
        self.hold().lose(&error.to_string())
    }

    fn open_once(&self) -> Result<Device, CudaUnavailable> {
        let ordinal = self.ordinal();
        if let Some(error) = self.loss() {
            let error = error.to_owned();
            return Err(CudaUnavailable::SharedContextLost { ordinal, error });
        }
        if !self.await_release() {
            return Err(CudaUnavailable::NotReleased { ordinal });
        }
        Device::open_for(ordinal, Some(self.hold()))
    }
}

impl Shared {
    fn bind(&self) -> Result<(), DriverError> {
        if CURRENT.get() == self.id {
            return Ok(());
        }
        // SAFETY: the context is retained.
        check("cuCtxSetCurrent", unsafe {
            (self.functions.ctx_set_current)(self.context)
        })?;
        CURRENT.set(self.id);
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`; no object made from the context is left, as it would hold `self`. An error
        // cannot be handled.
        let _ = unsafe { (self.functions.primary_release)(self.device) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("info", self.info())
            .field("allocated_bytes", &self.allocated_bytes())
            .field("pinned_bytes", &self.pinned_bytes())
            .finish()
    }
}
