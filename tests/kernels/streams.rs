//! Tests that the emulated driver exposes synchronisation bugs between streams, and reports other faults.

#![allow(unsafe_code)]

use souffleur_cusim::Fault;
use souffleur_kernels::cuda::driver::{
    Device, DevicePtr, DriverError, Grid, HostUse, Kernel, Priority,
};

const WIDTH: usize = 256;
/// The text that the emulated driver accepts as an image with every kernel.
const ANY_KERNEL: &[u8] = b"cusim\0";

#[derive(Clone, Copy, PartialEq)]
enum PlantedBug {
    Nothing,
    /// The kernel's stream does not wait for the copy.
    MissingWait,
    /// The host writes to the pinned buffer while it is being copied.
    EarlyReuse,
    /// The host reads the result before it has arrived.
    EarlyRead,
}

/// A device that no other test uses.
fn open(ordinal: usize) -> (souffleur_cusim::Device, Device) {
    souffleur_cusim::load();
    let emulated = souffleur_cusim::Device::new(ordinal);
    (emulated, Device::open(ordinal).unwrap())
}

fn kernel(device: &Device, name: &str) -> Kernel {
    // SAFETY: the emulated driver reads the text up to its NUL.
    let module = unsafe { device.load_module(ANY_KERNEL) }.unwrap();
    module.kernel(name).unwrap()
}

/// The norm of a row of threes, copied in on one stream, computed on a second, and copied out.
fn norm_of_threes(device: &Device, planted: PlantedBug) -> Vec<f32> {
    let copies = device.stream(Priority::High).unwrap();
    let compute = device.stream(Priority::Low).unwrap();
    let norm = kernel(device, "rms_norm_f32");
    let row = device.alloc::<f32>(WIDTH).unwrap();
    let out = device.alloc::<f32>(WIDTH).unwrap();
    let weight = device.alloc::<f32>(WIDTH).unwrap();
    compute.write(&weight, 0, &[1.0; WIDTH]).unwrap();
    let mut staged = device.pinned::<f32>(WIDTH, HostUse::Upload).unwrap();
    let result = device.pinned::<f32>(WIDTH, HostUse::Readback).unwrap();
    let copied = device.event().unwrap();

    staged.fill(3.0);
    // SAFETY: `staged` lives to the end of this function; it is written too early on purpose, on an emulated device.
    unsafe { copies.upload(&row, 0, &staged, 0..WIDTH) }.unwrap();
    copies.record(&copied).unwrap();
    if planted != PlantedBug::MissingWait {
        compute.wait(&copied).unwrap();
    }
    if planted == PlantedBug::EarlyReuse {
        staged.fill(0.0);
    }
    let arguments = (
        out.ptr(),
        row.ptr(),
        DevicePtr::<u32>::NULL,
        weight.ptr(),
        WIDTH as u32,
        1e-5_f32,
    );
    // SAFETY: the arguments are those of the kernel, and the buffers have its sizes.
    unsafe { norm.launch(&compute, Grid::new([1, 1, 1], 32), &arguments) }.unwrap();
    // SAFETY: as for `staged`.
    unsafe { compute.read_back(&result, 0, &out, 0..WIDTH) }.unwrap();
    if planted != PlantedBug::EarlyRead {
        compute.synchronize().unwrap();
    }
    let read = result.to_vec();
    device.synchronize().unwrap();
    read
}

#[track_caller]
fn check(ordinal: usize, planted: PlantedBug) {
    let is_right = |row: &[f32]| row.iter().all(|x| (x - 1.0).abs() < 1e-3);
    let (_, device) = open(ordinal);
    let sound = norm_of_threes(&device, PlantedBug::Nothing);
    assert!(is_right(&sound), "{sound:?}");
    let faulty = norm_of_threes(&device, planted);
    assert!(!is_right(&faulty), "the planted fault has no effect");
}

#[test]
fn a_missing_wait_between_streams_is_found() {
    check(1, PlantedBug::MissingWait);
}

#[test]
fn early_reuse_of_pinned_memory_is_found() {
    check(2, PlantedBug::EarlyReuse);
}

#[test]
fn reading_pinned_memory_too_early_is_found() {
    check(3, PlantedBug::EarlyRead);
}

#[test]
fn a_graph_reads_the_contents_of_buffers_at_its_launch() {
    let (emulated, device) = open(6);
    let stream = device.stream(Priority::High).unwrap();
    let (row, out) = (
        device.alloc::<f32>(WIDTH).unwrap(),
        device.alloc::<f32>(WIDTH).unwrap(),
    );
    let mut staged = device.pinned::<f32>(WIDTH, HostUse::Upload).unwrap();
    let graph = stream.capture(|| -> Result<(), DriverError> {
        // SAFETY: both buffers live to the end of this function and are not written while the graph runs.
        unsafe { stream.upload(&row, 0, &staged, 0..WIDTH) }?;
        stream.copy(&out, 0, &row, 0..WIDTH)
    });
    let graph = graph.unwrap();
    assert_eq!(emulated.counts().n_graph_launches, 0);
    for value in [1.0, 2.0] {
        staged.fill(value);
        // SAFETY: as above; the read waits for the graph.
        unsafe { graph.launch(&stream) }.unwrap();
        assert_eq!(stream.read(&out, 0..WIDTH).unwrap(), [value; WIDTH]);
    }
    assert_eq!(emulated.counts().n_graph_launches, 2);
}

#[test]
fn forbidden_calls_end_a_capture() {
    let (_, device) = open(7);
    let stream = device.stream(Priority::High).unwrap();
    let other = device.stream(Priority::Low).unwrap();
    let event = device.event().unwrap();
    other.record(&event).unwrap();
    let refused = |work: &dyn Fn() -> Result<(), DriverError>| {
        let captured = stream.capture(|| {
            // The capture is over, whether the call succeeds or fails.
            let _ = work();
            Ok::<(), DriverError>(())
        });
        assert!(captured.is_err());
    };
    refused(&|| stream.wait(&event));
    refused(&|| stream.synchronize());
    refused(&|| device.alloc::<f32>(WIDTH).map(drop));
    assert!(stream.capture(|| Ok::<(), DriverError>(())).is_ok());
    stream.synchronize().unwrap();
}

#[test]
fn a_write_past_an_allocation_is_attributed_to_its_kernel() {
    let (emulated, device) = open(4);
    let stream = device.stream(Priority::Low).unwrap();
    let norm = kernel(&device, "rms_norm_f32");
    let row = device.alloc::<f32>(WIDTH).unwrap();
    let short = device.alloc::<f32>(WIDTH - 1).unwrap();
    stream.write(&row, 0, &[3.0; WIDTH]).unwrap();
    let none = DevicePtr::<u32>::NULL;
    let arguments = (
        short.ptr(),
        row.ptr(),
        none,
        row.ptr(),
        WIDTH as u32,
        1e-5_f32,
    );
    // SAFETY: `short` is too short on purpose; an emulated device has guards after its allocations.
    unsafe { norm.launch(&stream, Grid::new([1, 1, 1], 32), &arguments) }.unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(error.to_string().contains("ILLEGAL_ADDRESS"), "{error}");
    let failure = emulated.failure().unwrap();
    assert!(
        failure.contains("rms_norm_f32") && failure.contains("past the end"),
        "{failure}"
    );
}

#[test]
fn planned_faults_occur_at_the_planned_calls() {
    const TOO_MANY_RESOURCES: i32 = 701;
    let (emulated, device) = open(5);
    emulated.plan(Fault::Allocation, 2);
    let _first = device.alloc::<f32>(WIDTH).unwrap();
    assert!(device.alloc::<f32>(WIDTH).unwrap_err().is_out_of_memory());
    assert!(device.alloc::<f32>(WIDTH).is_ok());

    emulated.set_total_memory(emulated.counts().used_bytes + 4 * WIDTH as u64);
    assert!(
        device
            .alloc::<f32>(WIDTH + 1)
            .unwrap_err()
            .is_out_of_memory()
    );
    assert!(device.alloc::<f32>(WIDTH).is_ok());

    emulated.plan(Fault::Launch(TOO_MANY_RESOURCES), 1);
    let row = device.alloc::<f32>(WIDTH).unwrap();
    let stream = device.stream(Priority::Low).unwrap();
    let norm = kernel(&device, "rms_norm_f32");
    let none = DevicePtr::<u32>::NULL;
    let arguments = (
        row.ptr(),
        row.ptr(),
        none,
        row.ptr(),
        WIDTH as u32,
        1e-5_f32,
    );
    // SAFETY: the arguments are those of the kernel, and the buffer has its size.
    let launch = || unsafe { norm.launch(&stream, Grid::new([1, 1, 1], 32), &arguments) };
    assert!(launch().is_err());
    launch().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(emulated.counts().n_kernels_run, 1);
}
