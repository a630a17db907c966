//! The engine's actors (Tokenizer, Router, Scheduler, RadixCache, Allocator, Executor, Vision, KvStore, Watchdog) and
//! their messages.
//!
//! ```text
//!  Generate ──► Tokenizer ── Submit, StopFound ──► Scheduler ── TokensReady ──► Tokenizer ──► client
//!                                                  │ ▲   │ ▲
//!                              PlanStep            ▼ │   │ │ StepDone
//!                              RadixCache ── ReservePages ──► Allocator ── StepPlanned ──► Scheduler
//!                                                        │
//!                                               RunStep  ▼
//!                                                     Executor ═ OS thread
//! ```
//!
//! With replicas, there are several Schedulers with their caches, allocators and executors, and the Tokenizer asks the
//! Router for the replica of each request before it sends `Submit`.

pub mod allocator;
pub mod beats;
pub mod call;
pub mod death;
mod doors;
pub mod executor;
pub mod kv_store;
mod links;
pub mod mailbox;
pub mod messages;
pub mod panics;
pub mod pictures;
pub mod prefix_index;
pub mod radix_cache;
pub mod rebuild;
pub mod router;
pub mod scheduler;
pub mod status;
pub mod tokenizer;
mod tree_tap;
pub mod unit;
pub mod vision;
pub mod watchdog;
