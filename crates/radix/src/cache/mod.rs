//! The prefix cache: the radix tree with its arguments and results, eviction orders, namespaces, the record of evictions
//! that explains misses, and node changes for observers.

pub mod changes;
pub mod eviction;
pub mod namespace;
pub mod prefix_cache;
pub mod prefix_history;
pub mod radix_tree;
