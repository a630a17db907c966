//! Prefix caches: the trait, the radix tree and the cache that keeps nothing, eviction orders, namespaces, the record
//! of evictions that explains misses, and node changes for observers.

pub mod changes;
pub mod eviction;
pub mod namespace;
pub mod plain_cache;
pub mod prefix_cache;
pub mod prefix_history;
pub mod radix_tree;
