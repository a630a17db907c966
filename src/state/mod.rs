//! The pure core: prefix caches, pools, planner, scheduler, sampler, detokenizer.
//!
//! **Nothing here imports actix, tokio, metrics or I/O, and nothing reads a clock**: time comes in as a value, so
//! every structure is property-tested, replayed and simulated as it is.
//!
//! Each room imports only those before it: [`request_limits`], [`prompt_vectors`], [`pooling`] (embeddings), [`pool`]
//! (memory), [`cache`] (prefixes), [`tiers`] (prefixes beyond memory), [`sampling`], [`grammar`] (what may be sampled), [`detok`] (text out of tokens),
//! [`output`] (calls and reasoning out of text), [`answer`] (both together), [`step`] (the work of an executor), [`plan`]
//! (the transaction between scheduler, cache and pools), [`scheduler`], [`control`] (scheduler, cache and pools together).

pub mod answer;
pub mod cache;
pub mod control;
pub mod detok;
pub mod grammar;
pub mod output;
pub mod plan;
pub mod pool;
pub mod pooling;
pub mod prompt_vectors;
pub mod request_limits;
pub mod sampling;
pub mod scheduler;
pub mod step;
pub mod tiers;
