//! The engine's logic without I/O: prefix caches, memory pools, planner, scheduler, sampler, detokenizer.
//!
//! **Nothing here imports tokio, metrics or I/O, and nothing reads a clock**: time is a parameter, so all state can be
//! property-tested, replayed and simulated. The feature `actix` only makes the messages of plans actix messages.
//!
//! Each module imports only modules that precede it in this list: [`request_limits`], [`prompt_vectors`],
//! [`prompt_images`], [`pooling`] (embeddings), [`pool`] (memory), [`cache`] (prefixes), [`tiers`] (the KV store),
//! [`detok`] (detokenizer), [`output`] (parsers of tool calls and reasoning), [`answer`] (detokenizer and parsers),
//! [`speculation`] (drafts), [`sampling`], [`grammar`] (constrained output), [`step`] (an executor's work), [`plan`] (transactions between
//! scheduler, cache and pools), [`vision`] (images to encode), [`scheduler`], [`control`] (scheduler, cache and pools
//! together), [`supervision`] (restarts after a death), [`docket`] (requests that survive a death), [`router`] (the
//! replica of each request).

pub mod control;
pub mod docket;
pub mod grammar;
#[cfg(feature = "actix")]
mod messages;
pub mod plan;
pub mod pooling;
pub mod router;
pub mod sampling;
pub mod scheduler;
pub mod speculation;
pub mod step;
pub mod supervision;
pub mod vision;

pub use souffleur_base::{prompt_images, prompt_vectors, request_limits};
pub use souffleur_output::{answer, detok, output};
pub use souffleur_radix::{cache, pool, tiers};
