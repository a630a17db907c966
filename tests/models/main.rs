//! Real models on the CPU executor: against transformers, against themselves in other batches, and broken ones.

#![allow(clippy::unwrap_used)]

mod common;
mod errors;
mod invariance;
mod oracle;
mod steps;
