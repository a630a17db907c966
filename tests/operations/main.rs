//! Tests of the backends' operations: the CPU's against plain references and against themselves in other batches, the
//! CUDA backend's on the emulated driver against the CPU's.

// Kernels are called with vectors and pointers.
#![allow(unsafe_code)]

mod attention;
#[cfg(feature = "cuda")]
#[allow(clippy::unwrap_used)]
mod cuda;
mod experts;
mod matmul;
