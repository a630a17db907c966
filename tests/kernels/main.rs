//! Tests of CUDA kernels without a GPU: compiled as C++, run on the CPU with and without faults, and compiled by NVRTC.

#![allow(clippy::unwrap_used)]

mod emulated;
#[path = "../common/python_environment.rs"]
mod environment;
mod pack;
mod planted;
mod program;
#[path = "../common/repository.rs"]
mod repository;
mod streams;
