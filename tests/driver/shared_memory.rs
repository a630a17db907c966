//! Tests of thread blocks' shared memory: static and dynamic bytes are added, and limited as on a GPU.

use souffleur::kernels::cuda::driver::{
    Device, DevicePtr, DriverError, Grid, Kernel, Priority, Stream,
};
use souffleur::kernels::cuda::launch::{AttendShape, Attention, OwnGemm};
use souffleur::kernels::cuda::pack::{Modules, Places};
use souffleur::kernels::cuda::params::{AttendParams, ElementType};
use souffleur_cusim::Fault;

use crate::{device, modules};

const INVALID_VALUE: i32 = 1;
/// The shared memory limit of a block on an A100.
const MAX_BYTES: u32 = 166_912;
const DEFAULT_BYTES: u32 = 48 << 10;
const DECODE: &str = "attend_decode_bf16_d64";

fn decode(modules: &Modules) -> Kernel {
    modules.kernel("attention_decode.cu", DECODE).unwrap()
}

fn null_params() -> AttendParams {
    AttendParams {
        out: DevicePtr::NULL,
        q: DevicePtr::NULL,
        k_pool: DevicePtr::NULL,
        v_pool: DevicePtr::NULL,
        page_table: DevicePtr::NULL,
        segments: DevicePtr::NULL,
        tiles: DevicePtr::NULL,
        partials: DevicePtr::NULL,
        table_stride: 1,
        page_size: 16,
        n_heads: 2,
        n_kv_heads: 2,
        head_dim: 64,
        window: 0,
        n_splits: 1,
        scale_log2: 1.0,
    }
}

/// Launches into a discarded recording, in which the driver refuses the same launches as elsewhere, and nothing runs.
fn recorded(
    device: &Device,
    launch: impl FnOnce(&Stream) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let stream = device.stream(Priority::High).unwrap();
    stream.capture(|| launch(&stream)).map(drop)
}

fn launch(device: &Device, kernel: &Kernel, shared_bytes: u32) -> Result<(), DriverError> {
    let grid = Grid::new([1, 1, 1], 128).shared(shared_bytes);
    // SAFETY: the launch is recorded, but not run.
    recorded(device, |stream| unsafe {
        kernel.launch(stream, grid, &(null_params(),))
    })
}

#[track_caller]
fn check_refused<T>(result: Result<T, DriverError>, parts: &[&str]) {
    let error = result.err().expect("the call is refused");
    assert_eq!(error.code, INVALID_VALUE, "{error}");
    assert!(error.is_refusal(), "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?}: {error}");
    }
}

#[test]
fn static_bytes_are_added_to_dynamic_ones() {
    let (device, _) = device(61);
    let kernel = decode(&modules(&device));
    let static_bytes = kernel.static_shared_bytes().unwrap();
    assert_eq!(static_bytes, 1024);
    let most = DEFAULT_BYTES - static_bytes;
    check_refused(
        launch(&device, &kernel, most + 1),
        &["cuLaunchKernel", DECODE],
    );
    check_refused(launch(&device, &kernel, DEFAULT_BYTES), &[DECODE]);
    launch(&device, &kernel, most).unwrap();
    // The allowed size is the limit from then on, whether it is more than the default or less.
    kernel.allow_shared_bytes(DEFAULT_BYTES).unwrap();
    launch(&device, &kernel, DEFAULT_BYTES).unwrap();
    check_refused(launch(&device, &kernel, DEFAULT_BYTES + 1), &[DECODE]);
}

#[test]
fn no_block_gets_more_than_the_device_has() {
    let (device, _) = device(62);
    let kernel = decode(&modules(&device));
    let most = MAX_BYTES - kernel.static_shared_bytes().unwrap();
    kernel.allow_shared_bytes(most).unwrap();
    let refused = kernel.allow_shared_bytes(most + 1);
    let bytes = (most + 1).to_string();
    check_refused(refused, &["cuFuncSetAttribute", DECODE, &bytes]);
    launch(&device, &kernel, most).unwrap();
    check_refused(launch(&device, &kernel, most + 1), &[DECODE]);
}

#[test]
fn attention_and_products_allow_the_shared_memory_that_they_use() {
    let (device, _) = device(63);
    let modules = modules(&device);
    for head_dim in [32, 64, 96, 128, 256] {
        let shape = shape(head_dim);
        let attention = Attention::load(&modules, shape, 108).unwrap();
        let params = AttendParams {
            head_dim,
            ..null_params()
        };
        // SAFETY: the launch is recorded, but not run.
        recorded(&device, |stream| unsafe {
            attention.decode(stream, &params, 1)
        })
        .unwrap();
        // SAFETY: likewise.
        recorded(&device, |stream| unsafe {
            attention.prefill(stream, &params, 1)
        })
        .unwrap();
    }
    OwnGemm::load(&modules, ElementType::Bf16, 108).unwrap();
}

fn shape(head_dim: u32) -> AttendShape {
    AttendShape {
        element: ElementType::Bf16,
        n_heads: 2,
        n_kv_heads: 2,
        head_dim,
    }
}

/// A former bug: with static bytes the total exceeded the default limit, but the attribute was not set.
#[test]
fn a_forgotten_request_for_shared_memory_is_noticed() {
    let (device, emulated) = device(64);
    let modules = modules(&device);
    emulated.plan(Fault::Attribute, 1);
    let attention = Attention::load(&modules, shape(64), 108).unwrap();
    // SAFETY: the launch is recorded, but not run.
    let refused = recorded(&device, |stream| unsafe {
        attention.decode(stream, &null_params(), 1)
    });
    check_refused(refused, &["cuLaunchKernel", DECODE]);
}

/// The emulated driver finds static bytes in machine code, in PTX array declarations or, without an image, in the pack.
#[test]
fn static_bytes_are_found_for_every_kind_of_image() {
    let (device, _) = device(65);
    let places = Places::default();
    let packed = match Modules::load_from(&device, places) {
        Ok(packed) => packed,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let no_images = modules(&device);
    let table = [
        ("attention_decode.cu", DECODE, 1024),
        ("attention_decode.cu", "attend_combine_f32", 0),
        ("attention_prefill.cu", "attend_prefill_generic_bf16", 5120),
        ("gemm.cu", "gemm_skinny_16x32_bf16", 17_408),
        ("gemm.cu", "gemm_tile_64x128_bf16", 0),
        ("norm.cu", "rms_norm_f32", 128),
        ("embed.cu", "rotations", 0),
        ("batch.cu", "edit_table", 4),
    ];
    for (unit, name, bytes) in table {
        for modules in [&packed, &no_images] {
            let kernel = modules.kernel(unit, name).unwrap();
            assert_eq!(kernel.static_shared_bytes().unwrap(), bytes, "{name}");
        }
    }
    let ptx = ".version 8.0\n.target sm_80\n.extern .shared .align 1024 .b8 dynamic[];\n\
        .visible .entry rms_norm_f32(\n)\n{\n.shared .align 4 .b8 a[6];\n.shared .align 16 .b8 b[1040];\n}\n\
        .visible .entry rms_norm_bf16(\n)\n{\n}\n\0";
    // SAFETY: text that ends in NUL.
    let module = unsafe { device.load_module(ptx.as_bytes()) }.unwrap();
    let bytes = |name| module.kernel(name).unwrap().static_shared_bytes().unwrap();
    assert_eq!((bytes("rms_norm_f32"), bytes("rms_norm_bf16")), (2048, 0));
}
