//! The pure core: the radix tree, the pools, the planner, the sampler, the detokenizer.
//!
//! **Nothing here imports actix, tokio, metrics or I/O, and nothing reads a clock**: time comes in as a value, so
//! every structure is property-tested, replayed and simulated as it is.

pub mod completion_order;
pub mod control;
pub mod detok;
pub mod eviction;
pub mod kv_layout;
pub mod namespace;
pub mod news;
pub mod page_pool;
pub mod pages;
pub mod plain_cache;
pub mod plan;
pub mod policy;
pub mod pools;
pub mod preemption;
pub mod prefill_adder;
pub mod prefix_cache;
pub mod prefix_history;
pub mod probe;
pub mod radix_tree;
pub mod request_limits;
pub mod row_pool;
pub mod sampling;
pub mod scheduler;
pub mod sequence;
pub mod stats;
pub mod step;
pub mod submission;
pub mod token_ratio;
pub mod transaction;
