//! Souffleur: an LLM inference engine made of actors.
//!
//! Reading order: [`ids`], [`state`] (pure data structures: tree, pools, planner), [`executor`] (what a step
//! is), [`model`] and [`kernels`] (how a step is computed).

pub mod error;
pub mod executor;
pub mod ids;
pub mod kernels;
pub mod model;
pub mod state;
