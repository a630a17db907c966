//! Settings and queries of tests for one emulated device.

use std::ffi::c_int;

use libloading::Symbol;

use crate::loaded;

/// One device of the driver. Devices share nothing: memory, errors, planned faults and counts are each one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    ordinal: usize,
}

/// A fault to plan on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An allocation of device memory is refused: `CUDA_ERROR_OUT_OF_MEMORY`.
    Allocation,
    /// A launch of a kernel or a graph is refused at once with this error; the device stays sound.
    Launch(i32),
    /// A kernel ends with this error while it runs; the device answers everything with it from then on.
    Kernel(i32),
    /// A stream's wait for an event is skipped: it succeeds and orders nothing.
    StreamWait,
    /// The host's wait for an event is skipped: it succeeds at once.
    HostWait,
    /// An attribute of a kernel is ignored: setting it succeeds and sets nothing.
    Attribute,
    /// A copy between the host and the device, of one byte or more, is refused at once with this error; the device stays
    /// sound.
    Copy(i32),
}

/// Event counts of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of device memory in use.
    pub used_bytes: u64,
    /// Allocations that have not been freed.
    pub n_allocations_held: u64,
    /// Allocations so far, refused ones included.
    pub n_allocations: u64,
    /// Launches of kernels so far, those into a capture and refused ones included.
    pub n_launches: u64,
    /// Those of them that may begin before the launch before them has ended.
    pub n_early_launches: u64,
    /// Launches of graphs so far.
    pub n_graph_launches: u64,
    /// Kernels that have run so far, in graphs or not.
    pub n_kernels_run: u64,
    /// Modules that were loaded so far.
    pub n_modules: u64,
}

impl Device {
    /// The device with this ordinal; the driver gets more devices where it has fewer.
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

    /// Sets the memory that the device says it has; 256 MiB otherwise.
    pub fn set_total_memory(self, bytes: u64) {
        let set: Symbol<unsafe extern "C" fn(c_int, usize) -> c_int> =
            function(b"cusim_set_total_memory");
        let bytes = usize::try_from(bytes).expect("addresses have 64 bits");
        // SAFETY: as above.
        self.expect(unsafe { set(self.number(), bytes) });
    }

    /// Lets copies run as soon as streams and events allow, or as late as they do, which is the default. The first
    /// shows memory that is written while earlier work still reads it.
    pub fn hurry_copies(self, hurries: bool) {
        let hurry: Symbol<unsafe extern "C" fn(c_int, c_int) -> c_int> =
            function(b"cusim_hurry_copies");
        // SAFETY: as above.
        self.expect(unsafe { hurry(self.number(), c_int::from(hurries)) });
    }

    /// Sets the compute capability, ten times the major number and the minor one; 80 otherwise. Kernels say that they were
    /// compiled for it. For devices that are opened later.
    pub fn set_capability(self, capability: i32) {
        let set: Symbol<unsafe extern "C" fn(c_int, c_int) -> c_int> =
            function(b"cusim_set_capability");
        // SAFETY: as above.
        self.expect(unsafe { set(self.number(), capability) });
    }

    /// Plans a fault for the `nth` of its kind from now on, counted from 1; 0 plans none.
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
        };
        let plan: Symbol<unsafe extern "C" fn(c_int, c_int, u64, c_int) -> c_int> =
            function(b"cusim_plan_fault");
        // SAFETY: as above.
        self.expect(unsafe { plan(self.number(), kind, nth, error) });
    }

    /// The counts so far.
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

    /// Ends the device's context as the driver's reset does: memory is freed and an error cleared.
    pub fn reset(self) {
        let reset: Symbol<unsafe extern "C" fn(c_int) -> c_int> = function(b"cusim_reset");
        // SAFETY: as above.
        self.expect(unsafe { reset(self.number()) });
    }

    /// Which device it is.
    pub fn ordinal(self) -> usize {
        self.ordinal
    }

    fn number(self) -> c_int {
        c_int::try_from(self.ordinal).expect("devices are few")
    }

    fn expect(self, result: c_int) {
        assert_eq!(result, 0, "device {} of the emulated driver", self.ordinal);
    }
}

fn function<T>(name: &[u8]) -> Symbol<'static, T> {
    // SAFETY: each caller names the signature of the function in driver/control.cpp.
    unsafe { loaded().get(name) }.expect("the library was built with this crate")
}
