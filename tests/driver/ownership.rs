//! Tests that kernels and copies reach the memory of their own device only, unless access to a peer is enabled.

use std::ffi::{c_int, c_uint, c_void};

use libloading::{Library, Symbol};
use souffleur::kernels::cuda::driver::{Device, DeviceBuffer, DriverError, Priority, Stream};
use souffleur::kernels::cuda::launch::Embed;
use souffleur::kernels::cuda::params::ElementType;

use crate::{device, modules};

const INVALID_VALUE: i32 = 1;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_ADDRESS: i32 = 700;

/// Writes a cosine and a sine to `out` on this device.
fn rotate(device: &Device, stream: &Stream, out: &DeviceBuffer<f32>) -> Result<(), DriverError> {
    let embed = Embed::load(&modules(device), ElementType::F32)?;
    let (frequencies, positions) = (device.alloc::<f32>(1)?, device.alloc::<u32>(1)?);
    let own = device.stream(Priority::High)?;
    own.write(&frequencies, 0, &[1.0])?;
    own.write(&positions, 0, &[0])?;
    let (out, frequencies, positions) = (out.ptr(), frequencies.ptr(), positions.ptr());
    // SAFETY: one position, one frequency, and space for a cosine and a sine, or the kernel does not run.
    unsafe { embed.rotations(stream, out, frequencies, positions, [1, 1], 1.0) }?;
    stream.synchronize()
}

#[test]
fn a_kernel_that_gets_another_devices_memory_fails() {
    let ((own, emulated), (other, _)) = (device(70), device(71));
    let stream = own.stream(Priority::High).unwrap();
    let (near, far) = (own.alloc(2).unwrap(), other.alloc(2).unwrap());
    rotate(&own, &stream, &near).unwrap();
    let failed = rotate(&own, &stream, &far).unwrap_err();
    assert_eq!(failed.code, ILLEGAL_ADDRESS, "{failed}");
    let text = emulated.failure().unwrap();
    assert!(
        text.contains("rotations") && text.contains("device 71"),
        "{text}"
    );
}

#[test]
fn copies_and_streams_of_another_device_are_refused() {
    let ((own, _), (other, _)) = (device(72), device(73));
    let stream = own.stream(Priority::High).unwrap();
    let (near, far) = (own.alloc::<u32>(2).unwrap(), other.alloc::<u32>(2).unwrap());
    for refused in [
        stream.copy(&near, 0, &far, 0..2),
        stream.copy(&far, 0, &near, 0..2),
        stream.write(&far, 0, &[1, 2]),
        stream.fill(&far, 0..2, 0),
    ] {
        assert_eq!(refused.unwrap_err().code, INVALID_VALUE);
    }
    let foreign = other.stream(Priority::High).unwrap();
    let refused = rotate(&own, &foreign, &own.alloc(2).unwrap()).unwrap_err();
    assert_eq!(refused.code, INVALID_HANDLE, "{refused}");
    let refused = foreign.record(&own.event().unwrap()).unwrap_err();
    assert_eq!(refused.code, INVALID_HANDLE, "{refused}");
    stream.write(&near, 0, &[1, 2]).unwrap();
    assert_eq!(stream.read(&near, 0..2).unwrap(), [1, 2]);
}

#[test]
fn a_device_reaches_a_peers_memory_once_it_has_access() {
    let ((own, _), (other, _)) = (device(74), device(75));
    let stream = own.stream(Priority::High).unwrap();
    let (near, far) = (own.alloc(2).unwrap(), other.alloc(2).unwrap());
    // The context of the calls below.
    own.synchronize().unwrap();
    // SAFETY: the library is loaded, and the functions are declared as in cuda.h.
    unsafe {
        let library = Library::new(souffleur_cusim::library()).unwrap();
        let retain: Symbol<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int> =
            library.get(b"cuDevicePrimaryCtxRetain").unwrap();
        let enable: Symbol<unsafe extern "C" fn(*mut c_void, c_uint) -> c_int> =
            library.get(b"cuCtxEnablePeerAccess").unwrap();
        let release: Symbol<unsafe extern "C" fn(c_int) -> c_int> =
            library.get(b"cuDevicePrimaryCtxRelease_v2").unwrap();
        let mut peer = std::ptr::null_mut();
        assert_eq!(retain(&mut peer, 75), 0);
        assert_eq!(enable(peer, 0), 0);
        assert_eq!(release(75), 0);
    }
    rotate(&own, &stream, &far).unwrap();
    stream.copy(&near, 0, &far, 0..2).unwrap();
    assert_eq!(stream.read(&near, 0..2).unwrap(), [1.0, 0.0]);
}
