//! The pure core: the radix tree, the pools, the planner, the sampler, the detokenizer.
//!
//! **Nothing here imports actix, tokio, metrics or I/O, and nothing reads a clock**: time comes in as a value, so
//! every structure is property-tested, replayed and simulated as it is.

pub mod namespace;
pub mod pages;
pub mod plan;
pub mod prefill_adder;
pub mod sampling;
pub mod stats;
