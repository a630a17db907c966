//! Tests of CUDA kernels without a GPU: run on the CPU as C++, with and without planted faults; compiled by NVRTC.

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
