//! Device kernels behind one trait.
pub mod cpu;
