//! The CUDA kernels: their sources, and the pack of their machine code.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// First line: the NVRTC version that compiles the pack; other lines: its options.
pub const COMPILER: &str = include_str!("nvrtc.txt");
