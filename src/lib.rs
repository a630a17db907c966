//! Souffleur: an LLM inference engine made of actors.
//!
//! A host program starts an engine, submits requests and reads their events:
//!
//! ```
//! use souffleur::config::EngineConfig;
//! use souffleur::engine::Engine;
//! use souffleur::request::{Event, FinishReason, GenerateRequest, Prompt};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = EngineConfig {
//!     model_path: "models/souffleur-tiny".into(),
//!     max_total_tokens: Some(1024),
//!     ..EngineConfig::default()
//! };
//! let engine = Engine::start(config)?;
//! let mut request = GenerateRequest::new(Prompt::Text("Once upon a time".into()));
//! request.sampling.max_new_tokens = 8;
//! request.sampling.ignore_eos = true;
//! let mut generation = engine.generate(request)?;
//! let mut tokens = 0;
//! let finished = actix::System::new().block_on(async {
//!     loop {
//!         match generation.next().await {
//!             Some(Event::Delta(delta)) => tokens += delta.tokens.len(),
//!             Some(Event::Finished(finished)) => break Some(finished),
//!             _ => break None,
//!         }
//!     }
//! });
//! let finished = finished.expect("no other request uses the engine");
//! assert_eq!(tokens + finished.delta.tokens.len(), 8);
//! assert_eq!(finished.reason, FinishReason::Length { max_new_tokens: 8 });
//! # Ok(())
//! # }
//! ```
//!
//! # For host programs
//!
//! - [`engine`]: starts an engine, on its own thread or on an Arbiter of the host; the engine's handle
//! - [`request`], [`sink`], [`admission`]: requests and their events, and the admission limits
//! - `hub` (with the feature `hub`): downloads models that a configuration names by their ids on the Hugging Face hub
//! - [`bundled`]: the small model in this library, which an engine with the default configuration runs
//! - [`config`]: all configuration keys with defaults and limits; [`error`]: all errors
//! - `server` (with the feature `server`): the HTTP and WebSocket routes, for the host's own actix-web app
//! - [`actors`]: the actors and the messages between them; [`actors::prefix_index`] is the cache without a model
//! - [`state`]: the pure data structures that the actors own, some of which travel in messages
//! - [`grammar`]: compiles constraints on an output into grammars (structured output)
//! - [`executor`]: the trait that runs steps, for executors of hosts; [`beat`]: how a long step shows progress
//! - [`record`]: the message log, and its replay
//! - [`chaos`]: faults that an engine injects into itself, for tests of its recovery
//! - [`ids`]: the newtypes of all ids
//!
//! The features `server`, `cli` (the binary, with `server` and `hub`), `hub` and `cuda` are on by default; without them
//! only the engine on the CPU is built. In a dev build of a host, the kernels are optimised only if the `Cargo.toml`
//! has `[profile.dev.package.souffleur-kernels]` with `opt-level = 3` (`docs/embedding.md`).
//!
//! The library installs no metrics recorder, log subscriber, panic hook or signal handler.
//!
//! All other items are public only for the binary and the tests, hidden from this documentation, and may change.

pub use souffleur_base::{beat, error, ids};
#[doc(inline)]
pub use souffleur_bundled as bundled;
#[doc(inline)]
pub use souffleur_request::{self as request, admission, sink};
#[doc(inline)]
pub use {
    souffleur_actors as actors, souffleur_chaos as chaos, souffleur_config as config,
    souffleur_engine as engine, souffleur_executor as executor, souffleur_record as record,
    souffleur_state as state,
};
#[doc(hidden)]
pub use {
    souffleur_grammar as grammar, souffleur_kernels as kernels, souffleur_kv_events as kv_events,
    souffleur_metrics as metrics, souffleur_model as model, souffleur_store as store,
};

#[cfg(feature = "hub")]
#[doc(inline)]
pub use souffleur_hub as hub;
#[cfg(feature = "server")]
#[doc(inline)]
pub use souffleur_server as server;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub use souffleur_simulate as simulate;
