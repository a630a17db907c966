//! Kernels on NVIDIA GPUs: everything between the driver and the executor.
//!
//! [`driver`] wraps the CUDA driver, [`pack`] loads the kernels, [`params`] and [`launch`] have their arguments and
//! launches, [`gemm`] chooses between our kernels and cuBLASLt, [`sampling`] has the kernels that run before and after
//! a model, [`backend`] the model's operations, and [`nccl`] the collectives of ranks. `executor::cuda` runs steps.
//! Building needs no part of CUDA; running needs only the driver, and uses cuBLASLt if it is installed. Ranks need NCCL.

// The driver's functions take raw handles and addresses.
#![allow(unsafe_code)]

pub mod arena;
pub mod backend;
pub mod driver;
pub mod gemm;
pub mod launch;
pub mod nccl;
pub mod pack;
pub mod params;
pub mod ranks;
pub mod sampling;
pub mod search;
pub mod symbols;
pub mod timing;
pub mod weights;
