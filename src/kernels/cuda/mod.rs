//! Kernels on NVIDIA GPUs: everything between the driver and the executor.
//!
//! [`driver`] wraps the CUDA driver, [`pack`] brings the kernels to the device, [`params`] and [`launch`] say how they
//! are called, [`gemm`] multiplies by them or by cuBLASLt, [`sampling`] has the work before and after a model, and
//! [`backend`] the model's operations. Nothing here runs a step; `executor::cuda` does.
//! No part of CUDA is needed to build this, and nothing but the driver to run it.

// The driver's functions take and give raw handles and addresses; each call says why it may be made.
#![allow(unsafe_code)]

pub mod arena;
pub mod backend;
pub mod driver;
pub mod gemm;
pub mod launch;
pub mod pack;
pub mod params;
pub mod sampling;
mod search;
mod symbols;
pub mod timing;
mod weights;
