//! The CUDA kernels: their sources, and the pack of their machine code.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The first line is the version of NVRTC that the pack is made with, the others are its options.
pub const COMPILER: &str = include_str!("nvrtc.txt");
