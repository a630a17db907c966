//! Tests of the backends' operations. Those on the CPU are compared with plain references and with results in other
//! batches. The CUDA backend runs on the emulated driver, and is compared with the CPU backend.

// Kernels that work on vectors and pointers are unsafe to call.
#![allow(unsafe_code)]

mod attention;
#[cfg(feature = "cuda")]
#[allow(clippy::unwrap_used)]
mod cuda;
mod experts;
mod matmul;
