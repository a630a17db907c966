//! Tests of the driver layer on an emulated driver, which runs kernels on the CPU, and delays asynchronous work as long
//! as CUDA's ordering of streams and events allows, so that missing synchronisation shows.

#![allow(clippy::unwrap_used)]
// Launches, graphs and copies from pinned memory are unsafe to call.
#![allow(unsafe_code)]

mod cli;
mod cublaslt;
#[path = "../common/python_environment.rs"]
mod environment;
mod faults;
mod gpu_check;
mod hot_path;
mod kernels;
mod memory;
mod nccl;
mod ownership;
mod pack;
#[path = "../common/repository.rs"]
mod repository;
mod shared_memory;
mod streams;

use souffleur::kernels::cuda::driver::Device;
use souffleur::kernels::cuda::pack::Modules;

/// A separate device for each test: tests run concurrently.
fn device(ordinal: usize) -> (Device, souffleur_cusim::Device) {
    souffleur_cusim::load();
    let emulated = souffleur_cusim::Device::new(ordinal);
    (Device::open(ordinal).expect("emulated GPU"), emulated)
}

fn modules(device: &Device) -> Modules {
    // SAFETY: the emulated driver reads text up to its NUL.
    unsafe { Modules::from_images(device, |_| b"cusim\0".to_vec()) }.expect("kernels linked in")
}
