//! Simulates the engine in virtual time: the real states of [`souffleur_state`], a trace or a synthetic load, and a roofline
//! model in place of the executor.
//!
//! Nothing here imports actix, tokio or a clock, so an hour of load on hardware that is not here takes seconds. The
//! engine's own code is simulated; the duration of a step is modelled ([`roofline`]), and nothing else.
//!
//! - [`trace`], [`read`], [`synthetic`]: the requests and their times
//! - [`hardware`], [`shape`], [`roofline`], [`pool`]: how long a step takes, and how much K/V fits
//! - [`disk`], [`store`]: the KV store, whose disk takes its time
//! - [`engine`]: the states in virtual time
//! - [`replay`]: prompts alone, one after another, for hit rates by capacity
//! - [`outcome`]: the fate of every request

mod azure;
mod counts;
pub mod disk;
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
mod rows;
pub mod shape;
pub mod store;
pub mod synthetic;
pub mod trace;

pub use error::SimulateError;
