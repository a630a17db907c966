//! Controls an emulated device in tests: settings, planned faults, counts.

use std::ffi::c_int;

use libloading::Symbol;

use crate::loaded;

/// One emulated device. Each device has its own memory, errors, planned faults and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    ordinal: usize,
}

/// A fault to plan on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An allocation of device memory is refused: `CUDA_ERROR_OUT_OF_MEMORY`.
    Allocation,
    /// A launch of a kernel or a graph is refused at once with this error; the device stays usable.
    Launch(i32),
    /// A kernel fails with this error while it runs; all later calls on the device return the same error.
    Kernel(i32),
    /// A kernel fails with this error while it runs, and all later calls on the device return the same error, also in
    /// new contexts: only a new process can use the device again.
    LastingKernel(i32),
    /// A stream's wait for an event is skipped: it succeeds and orders nothing.
    StreamWait,
    /// The host's wait for an event is skipped: it succeeds at once.
    HostWait,
    /// An attribute of a kernel is ignored: setting it succeeds and sets nothing.
    Attribute,
    /// A copy of at least one byte between host and device is refused at once with this error; the device stays usable.
    Copy(i32),
    /// A call of a collective is refused at once with this error of NCCL.
    CollectiveRefused(i32),
    /// A collective fails with this error of NCCL while it runs: it and the later ones of its group never end.
    CollectiveFails(i32),
    /// The rank on the device never takes part in a collective: the other ranks wait.
    CollectiveSilent,
    /// The rank on the device takes part in a collective with one element too few.
    CollectiveMismatch,
}

/// What a device has done so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of device memory in use.
    pub used_bytes: u64,
    /// Allocations that have not been freed.
    pub n_allocations_held: u64,
    /// Allocations so far, refused ones included.
    pub n_allocations: u64,
    /// Kernel launches so far, including captured and refused ones.
    pub n_launches: u64,
    /// Kernel launches that may begin before the previous launch has ended.
    pub n_early_launches: u64,
    /// Launches of graphs so far.
    pub n_graph_launches: u64,
    /// Kernels that have run so far, in graphs or not.
    pub n_kernels_run: u64,
    /// Modules that were loaded so far.
    pub n_modules: u64,
}

impl Device {
    /// The device with this ordinal; adds devices to the driver if it has too few.
    ///
    /// # Panics
    /// If the driver cannot be loaded.
    pub fn new(ordinal: usize) -> Self {
        let device = Self { ordinal };
        let add: Symbol<unsafe extern "C" fn(c_int) -> c_int> = function(b"cusim_add_devices");
        // SAFETY: the signature is that of driver/control.cpp.
        unsafe { add(device.number() + 1) };
        device
    }

    /// Sets the total memory that the device reports; the default is 256 MiB.
    pub fn set_total_memory(self, bytes: u64) {
        let set: Symbol<unsafe extern "C" fn(c_int, usize) -> c_int> =
            function(b"cusim_set_total_memory");
        let bytes = usize::try_from(bytes).expect("addresses have 64 bits");
        // SAFETY: as above.
        self.expect(unsafe { set(self.number(), bytes) });
    }

    /// Runs copies as early as streams and events allow if `hurries`, else as late as they allow (the default). Early
    /// copies reveal memory that is overwritten while earlier work still reads it.
    pub fn hurry_copies(self, hurries: bool) {
        let hurry: Symbol<unsafe extern "C" fn(c_int, c_int) -> c_int> =
            function(b"cusim_hurry_copies");
        // SAFETY: as above.
        self.expect(unsafe { hurry(self.number(), c_int::from(hurries)) });
    }

    /// Sets the compute capability, `10 * major + minor`; the default is 80. Kernels report it as their target. Set it
    /// before the device is opened.
    pub fn set_capability(self, capability: i32) {
        let set: Symbol<unsafe extern "C" fn(c_int, c_int) -> c_int> =
            function(b"cusim_set_capability");
        // SAFETY: as above.
        self.expect(unsafe { set(self.number(), capability) });
    }

    /// Plans a fault in the `nth` operation of its kind from now on, counted from 1; 0 cancels the plan.
    pub fn plan(self, fault: Fault, nth: u64) {
        const SUCCESS: i32 = 0;
        const OUT_OF_MEMORY: i32 = 2;
        let (kind, error) = match fault {
            Fault::Allocation => (0, OUT_OF_MEMORY),
            Fault::Launch(error) => (1, error),
            Fault::Kernel(error) => (2, error),
            Fault::StreamWait => (3, SUCCESS),
            Fault::HostWait => (4, SUCCESS),
            Fault::Attribute => (5, SUCCESS),
            Fault::Copy(error) => (6, error),
            Fault::LastingKernel(error) => (7, error),
            Fault::CollectiveRefused(error) => (8, error),
            Fault::CollectiveFails(error) => (9, error),
            Fault::CollectiveSilent => (10, SUCCESS),
            Fault::CollectiveMismatch => (11, SUCCESS),
        };
        let plan: Symbol<unsafe extern "C" fn(c_int, c_int, u64, c_int) -> c_int> =
            function(b"cusim_plan_fault");
        // SAFETY: as above.
        self.expect(unsafe { plan(self.number(), kind, nth, error) });
    }

    /// The events counted so far.
    pub fn counts(self) -> Counts {
        let ask: Symbol<unsafe extern "C" fn(c_int, *mut Counts) -> c_int> =
            function(b"cusim_counts");
        let mut counts = Counts::default();
        // SAFETY: as above; `Counts` has the layout of `CusimCounts`.
        self.expect(unsafe { ask(self.number(), &mut counts) });
        counts
    }

    /// The emulator's description of the kernel that failed, if one did.
    pub fn failure(self) -> Option<String> {
        let ask: Symbol<unsafe extern "C" fn(c_int, *mut u8, usize) -> usize> =
            function(b"cusim_failure");
        let mut text = vec![0; 1024];
        // SAFETY: as above; it writes no more than the length given, a NUL included.
        let written = unsafe { ask(self.number(), text.as_mut_ptr(), text.len()) };
        text.truncate(written.min(text.len() - 1));
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    }

    /// Ends the device's context as the driver's reset does: memory is freed and an error cleared, unless it lasts.
    pub fn reset(self) {
        let reset: Symbol<unsafe extern "C" fn(c_int) -> c_int> = function(b"cusim_reset");
        // SAFETY: as above.
        self.expect(unsafe { reset(self.number()) });
    }

    /// The device's number in the driver.
    pub fn ordinal(self) -> usize {
        self.ordinal
    }

    fn number(self) -> c_int {
        c_int::try_from(self.ordinal).expect("the ordinal fits into c_int")
    }

    fn expect(self, result: c_int) {
        assert_eq!(result, 0, "error of emulated device {}", self.ordinal);
    }
}

pub(crate) fn function<T>(name: &[u8]) -> Symbol<'static, T> {
    // SAFETY: each caller gives the signature of the function in driver/control.cpp.
    unsafe { loaded().get(name) }.expect("the library was built with this crate")
}
