//! Tests of device faults: refused launches, lost contexts, and missing devices, memory and kernels.

use std::thread;

use memmap2::MmapMut;
use souffleur::error::StepError;
use souffleur::kernels::cuda::driver::{
    Claim, CudaUnavailable, Device, DeviceBuffer, DriverError, LaunchState, Priority, Stream,
};
use souffleur::kernels::cuda::launch::Embed;
use souffleur::kernels::cuda::params::ElementType;
use souffleur_cusim::Fault;

use crate::{device, modules};

const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
const ILLEGAL_ADDRESS: i32 = 700;
const HARDWARE_STACK_ERROR: i32 = 714;

struct Rotations {
    embed: Embed,
    stream: Stream,
    out: DeviceBuffer<f32>,
    frequencies: DeviceBuffer<f32>,
    positions: DeviceBuffer<u32>,
}

impl Rotations {
    fn new(device: &Device) -> Self {
        let stream = device.stream(Priority::High).unwrap();
        let frequencies = device.alloc(1).unwrap();
        let positions = device.alloc(1).unwrap();
        stream.write(&frequencies, 0, &[1.0]).unwrap();
        stream.write(&positions, 0, &[0]).unwrap();
        Self {
            embed: Embed::load(&modules(device), ElementType::F32).unwrap(),
            out: device.alloc(2).unwrap(),
            frequencies,
            positions,
            stream,
        }
    }

    fn launch(&self) -> Result<(), DriverError> {
        let Self {
            embed,
            stream,
            out,
            frequencies,
            positions,
        } = self;
        // SAFETY: the buffers hold one position and one frequency, and have space for a cosine and a sine.
        unsafe {
            embed.rotations(
                stream,
                out.ptr(),
                frequencies.ptr(),
                positions.ptr(),
                [1, 1],
                1.0,
            )
        }
    }
}

#[test]
fn a_refused_launch_leaves_the_device_usable() {
    let (device, emulated) = device(21);
    let rotations = Rotations::new(&device);
    emulated.plan(Fault::Launch(LAUNCH_OUT_OF_RESOURCES), 1);
    let error = rotations.launch().unwrap_err();
    assert!(error.is_refusal(), "{error}");
    assert!(error.to_string().contains("rotations"), "{error}");
    let of_step = |launched| error.clone().into_step_error(launched);
    assert!(matches!(
        of_step(LaunchState::Nothing),
        StepError::Rejected(_)
    ));
    assert!(matches!(
        of_step(LaunchState::Something),
        StepError::Lost(_)
    ));
    rotations.launch().unwrap();
    assert_eq!(
        rotations.stream.read(&rotations.out, 0..2).unwrap(),
        [1.0, 0.0]
    );
}

#[test]
fn a_failed_kernel_loses_the_context_until_everything_in_it_is_dropped() {
    let (device, emulated) = device(22);
    let rotations = Rotations::new(&device);
    let mut page = MmapMut::map_anon(4096).unwrap();
    // SAFETY: the page lives longer than its pinning.
    let pinned = unsafe { device.pin(&mut page) }.unwrap();
    emulated.plan(Fault::Kernel(ILLEGAL_ADDRESS), 1);
    rotations.launch().unwrap();
    let error = rotations.stream.synchronize().unwrap_err();
    assert!(!error.is_refusal(), "{error}");
    let of_step = error.into_step_error(LaunchState::Nothing);
    assert!(matches!(of_step, StepError::Lost(_)), "{of_step}");
    let later = device.alloc::<u8>(1).unwrap_err();
    assert_eq!(later.code, ILLEGAL_ADDRESS, "{later}");
    drop((pinned, rotations, device));
    let again = Device::open(22).expect("a new context works");
    // Memory that the lost context had pinned is no longer pinned.
    // SAFETY: as above.
    let _pinned = unsafe { again.pin(&mut page) }.unwrap();
    Rotations::new(&again).launch().unwrap();
    again.synchronize().unwrap();
}

/// Runs a kernel that fails.
fn fail(device: &Device) -> DriverError {
    let rotations = Rotations::new(device);
    rotations.launch().unwrap();
    rotations.stream.synchronize().unwrap_err()
}

#[test]
fn an_error_that_outlives_the_context_refuses_all_later_ones() {
    let (device, emulated) = device(25);
    emulated.plan(Fault::LastingKernel(HARDWARE_STACK_ERROR), 1);
    let error = fail(&device);
    assert_eq!(error.code, HARDWARE_STACK_ERROR, "{error}");
    drop(device);
    for _ in 0..2 {
        let refused = Device::open(25).unwrap_err();
        assert!(
            matches!(&refused, CudaUnavailable::Lost { ordinal: 25, error } if error.code == HARDWARE_STACK_ERROR),
            "{refused}"
        );
        let error = refused.to_load_error();
        assert!(error.is_permanent(), "{error}");
        let text = error.to_string();
        assert!(text.contains("must be terminated and relaunched"), "{text}");
    }
}

#[test]
fn a_claim_opens_a_gpu_again_after_a_loss_unless_another_claim_had_it_open() {
    let (device, emulated) = device(26);
    drop(device);
    let (first, second) = (Claim::new(26), Claim::new(26));
    // At the loss, the second claim does not have the GPU open.
    drop(second.open().unwrap());
    for _ in 0..2 {
        let alone = first.open().unwrap();
        emulated.plan(Fault::Kernel(ILLEGAL_ADDRESS), 1);
        alone.lose(&fail(&alone));
        assert_eq!(alone.loss(), None);
    }
    let shared = [first.open().unwrap(), second.open().unwrap()];
    emulated.plan(Fault::Kernel(ILLEGAL_ADDRESS), 1);
    let error = fail(&shared[0]);
    shared[0].lose(&error);
    assert!(
        shared
            .iter()
            .all(|device| device.loss() == Some(&*error.to_string()))
    );
    drop(shared);
    for claim in [first, second] {
        let refused = claim.open().unwrap_err();
        assert!(
            matches!(&refused, CudaUnavailable::SharedContextLost { ordinal: 26, error } if error.contains("(700)")),
            "{refused}"
        );
        assert!(refused.to_load_error().is_permanent());
    }
    Claim::new(26).open().expect("a new context works");
}

#[test]
fn a_claim_opens_a_lost_gpu_again_once_all_its_holders_have_released_it() {
    let (device, emulated) = device(28);
    drop(device);
    let claim = Claim::new(28);
    let (first, second) = (claim.open().unwrap(), claim.open().unwrap());
    emulated.plan(Fault::Kernel(ILLEGAL_ADDRESS), 1);
    // The holder that meets the error tells none.
    let error = fail(&first).to_string();
    assert_eq!((first.loss(), second.loss()), (None, None));
    thread::scope(|scope| {
        let opening = scope.spawn(|| claim.open());
        while second.loss().is_none() {
            assert!(!opening.is_finished(), "the GPU is not released");
            thread::yield_now();
        }
        assert_eq!(first.loss(), second.loss());
        drop((first, second));
        let again = opening.join().unwrap().expect("a new context works");
        assert_eq!(again.loss(), None);
        Rotations::new(&again).launch().unwrap();
        again.synchronize().unwrap();
    });
    assert!(error.contains("(700)"), "{error}");
}

#[test]
fn a_refused_allocation_may_succeed_later() {
    souffleur_cusim::load();
    souffleur_cusim::Device::new(27).plan(Fault::Allocation, 1);
    let claim = Claim::new(27);
    let refused = claim.open().unwrap_err().to_load_error();
    assert!(!refused.is_permanent(), "{refused}");
    claim.open().expect("the device works");
}

#[test]
fn a_device_that_gives_no_memory_is_refused_when_it_is_opened() {
    souffleur_cusim::load();
    souffleur_cusim::Device::new(23).plan(Fault::Allocation, 1);
    let refused = Device::open(23).unwrap_err();
    assert!(
        matches!(&refused, CudaUnavailable::FirstAllocation { ordinal: 23, error, .. } if error.is_out_of_memory()),
        "{refused}"
    );
}

#[test]
fn the_error_for_a_missing_device_names_it() {
    souffleur_cusim::load();
    let refused = Device::open(4000).unwrap_err();
    assert!(
        matches!(refused, CudaUnavailable::NoSuchDevice { ordinal: 4000, .. }),
        "{refused}"
    );
}

#[test]
fn the_error_for_a_missing_kernel_names_it() {
    let (device, _) = device(24);
    let modules = modules(&device);
    let error = modules.kernel("gemm.cu", "gemm_of_dreams").unwrap_err();
    assert!(error.to_string().contains("gemm_of_dreams"), "{error}");
    let error = modules.kernel("dreams.cu", "gemm").unwrap_err();
    assert!(error.to_string().contains("dreams.cu"), "{error}");
    // SAFETY: text that ends in NUL.
    let error = unsafe { device.load_module(b"no image\0") }.unwrap_err();
    assert!(error.is_refusal(), "{error}");
}
