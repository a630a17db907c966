//! The pure core: prefix caches, pools, planner, scheduler, sampler, detokenizer, calls of tools in outputs.
//!
//! **Nothing here imports actix, tokio, metrics or I/O, and nothing reads a clock**: time comes in as a value, so
//! every structure is property-tested, replayed and simulated as it is.
//!
//! Each room imports only those before it: [`request_limits`], [`output`] (calls and reasoning in outputs), [`pool`]
//! (memory), [`cache`] (prefixes), [`sampling`], [`detok`] (text out of tokens), [`step`] (the work of an executor),
//! [`plan`] (the transaction between scheduler, cache and pools), [`scheduler`], [`control`] (scheduler, cache and pools
//! together).

pub mod cache;
pub mod control;
pub mod detok;
pub mod output;
pub mod plan;
pub mod pool;
pub mod request_limits;
pub mod sampling;
pub mod scheduler;
pub mod step;
