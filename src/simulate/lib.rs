//! Simulates the engine on a trace or a synthetic load in virtual time, with a roofline model as executor.
//!
//! The scheduler, tree and pools are the engine's own code ([`souffleur_state`]); only the durations of
//! steps ([`roofline`]) and disk accesses ([`disk`]) are modelled. Without actors and clock, an hour takes seconds.
//!
//! - [`trace`], [`read`], [`synthetic`]: the requests and their arrival times
//! - [`hardware`], [`shape`], [`roofline`], [`pool`]: the duration of a step, and the capacity for keys and values
//! - [`disk`], [`store`]: the KV store, with the delays of its disk
//! - [`engine`]: the scheduler, tree and pools in virtual time
//! - [`replay`]: inserts the prompts one after another, to compute hit rates by cache size
//! - [`rows`], [`drafts`]: the results of the simulated executor, with drafts
//! - [`outcome`]: the outcome of every request

mod azure;
mod counts;
pub mod disk;
pub mod drafts;
pub mod engine;
mod error;
pub mod hardware;
mod lines;
mod mooncake;
pub mod outcome;
pub mod pool;
pub mod read;
pub mod replay;
pub mod roofline;
mod routing;
pub mod rows;
pub mod shape;
pub mod store;
pub mod synthetic;
pub mod trace;
mod unit;

pub use error::SimulateError;
