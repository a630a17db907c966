//! A radix tree of token prefixes over paged KV memory.
//!
//! **Nothing here imports a runtime or does I/O, and nothing reads a clock**: time comes in as a value.
//!
//! - [`pool`]: pages, rows and states, and their owners
//! - [`cache`]: the tree, eviction policies, namespaces, and the record of evictions that explains misses
//! - [`tiers`]: keys and index of the blocks that outlive memory, and the cost of loading them

pub mod cache;
pub mod pool;
mod prefetch;
pub mod tiers;
