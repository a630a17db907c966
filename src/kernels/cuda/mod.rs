//! Kernels on NVIDIA GPUs: everything between the driver and the executor.
//!
//! [`driver`] wraps what is used of the CUDA driver, [`params`] says how kernels are called.
//! No part of CUDA is needed to build this, and nothing but the driver to run it.

// The driver's functions take and give raw handles and addresses; each call says why it may be made.
#![allow(unsafe_code)]

pub mod driver;
pub mod params;
mod symbols;
