//! Souffleur: an LLM inference engine made of actors.
//!
//! Reading order: [`request`] (what goes in and out), [`engine`] (how it is started), [`actors`] (who does what,
//! and every message), [`state`] (the pure data structures that the actors own), [`executor`] (what a step is),
//! [`model`] and [`kernels`] (how a step is computed), [`record`] (what the scheduler did, for a replay).

pub mod actors;
pub mod admission;
pub mod config;
pub mod engine;
pub mod error;
pub mod executor;
mod field;
pub mod ids;
pub mod kernels;
pub mod metrics;
pub mod model;
mod prefetch;
pub mod record;
pub mod request;
pub mod server;
pub mod simulate;
pub mod sink;
pub mod state;
